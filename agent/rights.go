package agent

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/user"
	"strconv"
	"strings"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
)

// grants are the lists of [rights] as callers are met: names of operators and hosts, and
// numbers of users and groups. Names are looked up when the file is read, so that a
// request waits for no directory, and a name that is given to another user later gives
// him nothing before a reload.
type grants struct {
	byName   map[pki.Right]map[string]string // "operator:alice" → its entry
	byUID    map[pki.Right]map[uint32]string
	byGID    map[pki.Right]map[uint32]string
	everyone bool // may operate
	accounts accounts
}

// accounts looks users and groups of this machine up.
type accounts struct {
	uid, gid func(name string) (string, error)
	passwd   string // the file that numbers are named by
}

// machineAccounts are those of the machine that the agent runs on. A binary without cgo
// reads its files alone: users of a directory service are given a right by number.
func machineAccounts() accounts {
	return accounts{
		uid: func(name string) (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		},
		gid: func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		},
		passwd: "/etc/passwd",
	}
}

// overflowID is what the kernel gives for a user or group that it cannot name here, of a
// container say (/proc/sys/kernel/overflowuid): everybody who is nobody.
const overflowID = 65534

// operate is what [rights] operate gives. No certificate does: an operator's is let in, and the
// list says to what.
const operate pki.Right = "operate"

// readGrants reads the lists. Beside an error, fault.Invalid with a reason for each name
// that nobody has, it gives what the others are given.
func readGrants(r config.Rights, who accounts) (*grants, error) {
	out := &grants{
		byName: map[pki.Right]map[string]string{operate: {}, pki.RightShareNothing: {}, pki.RightConduct: {}, pki.RightRelay: {}},
		byUID:  map[pki.Right]map[uint32]string{operate: {}, pki.RightShareNothing: {}, pki.RightConduct: {}},
		byGID:  map[pki.Right]map[uint32]string{operate: {}, pki.RightShareNothing: {}, pki.RightConduct: {}},
		// A list of names that nobody has is one that has nobody.
		everyone: len(r.Operate) == 0, accounts: who,
	}
	var reasons []fault.Reason
	for _, list := range []struct {
		right   pki.Right
		key     string
		entries []string
	}{{operate, "rights.operate", r.Operate}, {pki.RightShareNothing, "rights.share_nothing", r.ShareNothing}, {pki.RightConduct, "rights.conduct", r.Conduct}, {pki.RightRelay, "rights.relay", r.Relay}} {
		for _, entry := range list.entries {
			said := list.key[len("rights."):] + " " + entry
			h, err := config.ParseHolder(entry)
			var id uint32
			switch {
			case err != nil:
			case h.Kind == config.HolderUser:
				if id, err = number(h.Name, who.uid); err == nil {
					out.byUID[list.right][id] = said
				}
			case h.Kind == config.HolderGroup:
				if id, err = number(h.Name, who.gid); err == nil {
					out.byGID[list.right][id] = said
				}
			default:
				out.byName[list.right][entry] = said
			}
			if err != nil {
				reasons = append(reasons, fault.Reason{
					Code: "config_value", Message: list.key + ": " + entry + ": " + err.Error(), Have: entry,
					Change: "correct it, or make the " + string(h.Kind) + "; users and groups of a directory service are named by number",
				})
			}
		}
	}
	if len(reasons) > 0 {
		return out, fault.Refuse(fault.Invalid, "read [rights]", reasons...)
	}
	return out, nil
}

// number is a user's or group's, which is its name where that is one.
func number(name string, lookup func(string) (string, error)) (uint32, error) {
	text, err := lookup(name)
	if err != nil {
		if _, numeric := strconv.ParseUint(name, 10, 32); numeric != nil {
			return 0, err
		}
		text = name
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err == nil && id == overflowID {
		err = errors.New("that is everybody whom the kernel cannot name here")
	}
	return uint32(id), err
}

// Given implements api.Rights.
func (g *grants) Given(right pki.Right, who api.Holder) string {
	switch {
	case who.Operator != "":
		return g.byName[right][config.Holder{Kind: config.HolderOperator, Name: who.Operator}.String()]
	case who.Host != "":
		return g.byName[right][config.Holder{Kind: config.HolderHost, Name: who.Host}.String()]
	case who.Local == nil || right.Counts(pki.RoleHost): // that is a host's alone
		return ""
	}
	if said := g.byUID[right][who.Local.UID]; said != "" {
		return said
	}
	for _, gid := range who.Local.Groups {
		if said := g.byGID[right][gid]; said != "" {
			return said
		}
	}
	return ""
}

// Operates implements api.Rights.
func (g *grants) Operates(who api.Holder) bool { return g.everyone || g.Given(operate, who) != "" }

// UserName implements api.Rights, by the machine's own file alone.
func (g *grants) UserName(uid uint32) string {
	text, err := os.ReadFile(g.accounts.passwd)
	if err != nil {
		return "" // a number is as good
	}
	want := strconv.FormatUint(uint64(uid), 10)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if f := strings.Split(lines.Text(), ":"); len(f) > 2 && f[2] == want {
			return f[0]
		}
	}
	return ""
}

// rights are what the configuration gives now.
type rights struct{ a *Agent }

// Given implements api.Rights.
func (r rights) Given(right pki.Right, who api.Holder) string {
	return r.a.grants.Load().Given(right, who)
}

// Operates implements api.Rights.
func (r rights) Operates(who api.Holder) bool { return r.a.grants.Load().Operates(who) }

// UserName implements api.Rights.
func (r rights) UserName(uid uint32) string { return r.a.grants.Load().UserName(uid) }
