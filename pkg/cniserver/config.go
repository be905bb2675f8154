package cniserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ovsdn/ovsdn/pkg/atomicfile"
)

// ConfigName is the name of the CNI configuration, in the runtime's directory (/etc/cni/net.d by default). Runtimes take the first file in lexical
// order.
const ConfigName = "10-ovsdn.conflist"

// CapabilityPortMappings is CNI's name of host ports (CONVENTIONS.md): the runtime passes them in runtimeConfig.
const CapabilityPortMappings = "portMappings"

// configList is the content of the file, with libcni's field names. PluginConf can't encode it: its empty fields are not omitted.
type configList struct {
	CNIVersion  string         `json:"cniVersion"`
	CNIVersions []string       `json:"cniVersions"`
	Name        string         `json:"name"`
	Plugins     []configPlugin `json:"plugins"`
}

type configPlugin struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	Socket       string          `json:"socket,omitempty"`
}

// WriteConfig writes the network configuration to the runtime's directory, which makes the node Ready: call it when the agent can serve requests. The
// write is atomic. If the file has the same content, it is not written, and written is false.
func WriteConfig(dir, socket string) (written bool, err error) {
	plugin := configPlugin{Type: PluginName, Capabilities: map[string]bool{CapabilityPortMappings: true}}
	if socket != DefaultSocket {
		plugin.Socket = socket
	}
	content, err := json.MarshalIndent(configList{
		// A runtime of CNI 1.0 ignores the list, and fails if cniVersion is above its own; one of CNI 1.1 uses the highest
		// version of the list that it supports.
		CNIVersion:  "1.0.0",
		CNIVersions: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		Name:        "ovsdn",
		Plugins:     []configPlugin{plugin},
	}, "", "  ")
	if err != nil {
		return false, fmt.Errorf("encode the CNI configuration: %w", err)
	}
	content = append(content, '\n')
	path := filepath.Join(dir, ConfigName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	if err := writeAtomically(path, content, 0o644); err != nil {
		return false, fmt.Errorf("write the CNI configuration: %w", err)
	}
	return true, nil
}

// RemoveConfig removes the configuration, so that the runtime reports the node as not ready. A missing file is no error.
func RemoveConfig(dir string) error {
	err := os.Remove(filepath.Join(dir, ConfigName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration: %w", err)
	}
	return nil
}

// writeAtomically replaces the file, in a new directory if there is none. Runtimes neither load the temporary file (they load .conf, .conflist and .json) nor run it.
func writeAtomically(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, content, mode)
}
