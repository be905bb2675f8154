package hostports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// RemoveAll deletes the rules of all host ports, also of those whose records can't be read, and the directory, for an uninstallation.
func RemoveAll(ctx context.Context, plugin Plugin, dir string) error {
	none := func() func(string) bool { return func(string) bool { return false } }
	stored, err := records(dir).list()
	removed, unknownErr := plugin.RemoveUnknown(ctx, none)
	var errs []error
	if unknownErr != nil {
		errs = append(errs, err, unknownErr)
	}
	for _, r := range stored {
		if slices.Contains(removed, r.ruleID()) || unknownErr == nil && r.Backend == BackendNFTables {
			continue
		}
		if ctx.Err() != nil {
			break // reported by RemoveUnused
		}
		if err := plugin.Del(ctx, r); err != nil { // with iptables an ADD that was killed may have left a chain to which no rule leads
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
	errs := []error{ctx.Err(), removeUnusedTable(ctx)}
	for _, b := range existingTables() {
		errs = append(errs, p.removeUnusedChains(b))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove unused chains of portmap: %w", err)
	}
	return nil
}
