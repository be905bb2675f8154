package hostports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// RemoveAll deletes the rules of all stored host ports, and the directory, for an uninstallation.
func RemoveAll(ctx context.Context, plugin Plugin, dir string) error {
	stored, err := records(dir).list()
	errs := []error{err}
	for _, r := range stored {
		if err := plugin.Del(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("host ports of pod %s/%s: %w", r.Namespace, r.Name, err))
			continue
		}
		errs = append(errs, records(dir).remove(r.Attachment))
	}
	if err := errors.Join(append(errs, plugin.RemoveUnused(ctx))...); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("delete stored host ports: %w", err)
	}
	return nil
}

// legacyTablesFile lists the tables of iptables' legacy backend in this thread's network namespace. iptables would create the table that it lists.
const legacyTablesFile = "/proc/thread-self/net/ip_tables_names"

// RemoveUnused implements Plugin.
func (p *Portmap) RemoveUnused(ctx context.Context) error {
	backends := []Backend{BackendIPTables}
	if tables, err := os.ReadFile(legacyTablesFile); err == nil && slices.Contains(strings.Fields(string(tables)), "nat") {
		backends = append(backends, BackendLegacy)
	}
	errs := []error{removeUnusedTable(ctx)}
	for _, b := range backends {
		errs = append(errs, p.removeUnusedChains(b))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove unused chains of portmap: %w", err)
	}
	return nil
}
