package pods

// Known returns the attached sandboxes, and those that run and whose pods are unknown.
func (m *Manager) Known() map[Attachment]bool { return m.knownAttachments() }
