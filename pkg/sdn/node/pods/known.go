package pods

import "github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"

// Known returns the attached sandboxes, and those that run and whose pods are unknown.
func (m *Manager) Known() map[sandbox.Attachment]bool { return m.knownAttachments() }
