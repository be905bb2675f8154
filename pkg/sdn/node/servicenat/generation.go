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

// tableExists reports whether the rules of services exist. Where it can't find out, such as without permission, it returns an error.
func tableExists() (bool, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_IPV4, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(tableName)))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find table ip %s: %w", tableName, err)
	}
	return true, nil
}
