// Package nftables asks the kernel's nf_tables by netlink: to run nft takes a thousand times as long.
package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HasTable reports whether the table of family ip exists. A kernel without nf_tables has none.
func HasTable(table string) (bool, error) {
	exists, err := has(unix.NFT_MSG_GETTABLE, name(unix.NFTA_TABLE_NAME, table))
	if err != nil {
		return false, fmt.Errorf("find table ip %s of nftables: %w", table, err)
	}
	return exists, nil
}

// HasRules reports whether a chain of the table of family ip exists and has a rule; chain "": whether any has. A kernel without nf_tables has none.
func HasRules(table, chain string) (exists bool, err error) {
	rules := []*nl.RtAttr{name(unix.NFTA_RULE_TABLE, table)}
	if chain == "" {
		exists, err = HasTable(table)
	} else {
		exists, err = has(unix.NFT_MSG_GETCHAIN, name(unix.NFTA_CHAIN_TABLE, table), name(unix.NFTA_CHAIN_NAME, chain))
		rules = append(rules, name(unix.NFTA_RULE_CHAIN, chain))
	}
	if err == nil && exists {
		exists, err = startsDump(unix.NFT_MSG_GETRULE, rules...)
	}
	if err != nil {
		return false, fmt.Errorf("find rules of nftables in table ip %s, chain %q: %w", table, chain, err)
	}
	return exists, nil
}

// Generation returns the number of the ruleset, which each change by any program increases.
func Generation() (uint32, error) {
	messages, err := query(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC)
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

// Supported reports whether the kernel supports nf_tables. The kernel loads the module if needed.
func Supported() (bool, error) {
	_, err := query(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC)
	return IsSupported(err)
}

// IsSupported evaluates the error of a request: without nf_tables nfnetlink returns EINVAL, and without nfnetlink the socket returns EPROTONOSUPPORT.
func IsSupported(err error) (bool, error) {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("query nf_tables: %w", err)
	}
	return true, nil
}

// maxDumps is the number of attempts to list objects that other programs change.
const maxDumps = 5

// Dump returns the messages of kind answer about all objects that a request lists, e.g. NFT_MSG_NEWTABLE for NFT_MSG_GETTABLE. A kernel without nf_tables has none.
func Dump(request, answer int) ([][]byte, error) {
	return retryInterrupted(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|request, unix.NLM_F_DUMP)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
		messages, err := r.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|answer))
		if supported, err := IsSupported(err); err != nil || !supported {
			return nil, err
		}
		return messages, nil
	})
}

// retryInterrupted repeats a dump during which another program changed what it lists.
func retryInterrupted(dump func() ([][]byte, error)) (messages [][]byte, err error) {
	for range maxDumps {
		if messages, err = dump(); !errors.Is(err, nl.ErrDumpInterrupted) {
			return messages, err
		}
	}
	return nil, err
}

func has(message int, names ...*nl.RtAttr) (bool, error) {
	_, err := query(message, unix.NFPROTO_IPV4, names...)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return IsSupported(err)
}

// startsDump reports whether the dump has an object. It reads the first part only: a chain of kube-proxy may have ten thousand rules.
func startsDump(message int, names ...*nl.RtAttr) (bool, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return false, err
	}
	defer socket.Close()
	if err := socket.Send(newRequest(message, unix.NLM_F_DUMP, unix.NFPROTO_IPV4, names)); err != nil {
		return false, err
	}
	answers, _, err := socket.Receive()
	if err != nil || len(answers) == 0 {
		return false, err
	}
	switch first := answers[0]; first.Header.Type {
	case unix.NLMSG_DONE:
		return false, nil
	case unix.NLMSG_ERROR:
		if len(first.Data) < 4 {
			return false, errors.New("nftables reported an error without a number")
		}
		errno := int32(binary.NativeEndian.Uint32(first.Data)) //nolint:gosec // the kernel's number has a sign
		return false, unix.Errno(-errno)
	}
	return true, nil
}

func name(attribute int, value string) *nl.RtAttr {
	return nl.NewRtAttr(attribute, nl.ZeroTerminated(value))
}

func query(message int, family uint8, attributes ...*nl.RtAttr) ([][]byte, error) {
	return newRequest(message, 0, family, attributes).Execute(unix.NETLINK_NETFILTER, 0)
}

func newRequest(message, flags int, family uint8, attributes []*nl.RtAttr) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	for _, a := range attributes {
		request.AddData(a)
	}
	return request
}
