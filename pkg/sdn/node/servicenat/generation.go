package servicenat

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rulesetGeneration returns the number of the ruleset, which each change by any program increases.
func rulesetGeneration() (uint32, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("parse the generation of nftables: %w", err)
		}
		for _, a := range attributes {
			const generationID = 1 // NFTA_GEN_ID
			if a.Attr.Type == generationID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("nftables reported no generation")
}
