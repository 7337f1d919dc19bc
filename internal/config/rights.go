package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"berth/internal/fault"
)

// Rights says who may do what nobody else may, beside those whose certificate gives it.
// Each list has holders, "<kind>:<name>"; see Holder. By default they are empty.
type Rights struct {
	// Operate are those who may change something, of all that an operator's certificate or the
	// socket lets in; the others may look. Root may at the socket in any case. Empty for all.
	Operate []string `toml:"operate"`
	// ShareNothing may ask this agent to conduct a move between two hosts that share
	// nothing, and confirm, revert or abort one that it conducts: operators, and users and
	// groups of the local socket.
	ShareNothing []string `toml:"share_nothing"`
	// Conduct are hosts whose agents may conduct moves from or to this host that are
	// between it and another.
	Conduct []string `toml:"conduct"`
	// Relay are hosts whose agents may pass on to this one what their own operators and local users
	// ask. They can then do to this host's instances what an operator can.
	Relay []string `toml:"relay"`
}

// HolderKind says by what a holder is known.
type HolderKind string

// The kinds of holders.
const (
	HolderOperator HolderKind = "operator" // the name in an operator's certificate
	HolderUser     HolderKind = "user"     // a user of this machine, by name or number, at the local socket
	HolderGroup    HolderKind = "group"    // a group of this machine, by name or number, of such a user
	HolderHost     HolderKind = "host"     // a provider's name, in a host's certificate
)

// Holder is one that is given a right.
type Holder struct {
	Kind HolderKind
	Name string
}

// String gives the holder as the file has it.
func (h Holder) String() string { return string(h.Kind) + ":" + h.Name }

var (
	// As certificates have them: another would be written and never met.
	operatorName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	// What passwd(5) and group(5) can have at all; directories have names with dots, at
	// signs and backslashes.
	accountName = regexp.MustCompile(`^[^\s:/,"]{1,256}$`)
)

// ParseHolder reads "<kind>:<name>". fault.Invalid for what nobody can be.
func ParseHolder(s string) (Holder, error) {
	kind, name, ok := strings.Cut(s, ":")
	h := Holder{Kind: HolderKind(kind), Name: name}
	good := map[HolderKind]*regexp.Regexp{HolderOperator: operatorName, HolderUser: accountName, HolderGroup: accountName, HolderHost: providerName}[h.Kind]
	switch {
	case !ok || good == nil:
		return h, fault.New(fault.Invalid, "%q: want operator:NAME, user:NAME, group:NAME or host:NAME", s)
	case !good.MatchString(name):
		return h, fault.New(fault.Invalid, "%q: that is no name of a %s", s, kind)
	}
	return h, nil
}

// faults gives what is wrong with the lists. A list that names a thing wrongly is refused
// as a whole: who is meant by it gets nothing by guess.
func (r Rights) faults() []fault.Reason {
	var out []fault.Reason
	for _, list := range []struct {
		key   string
		have  []string
		kinds []HolderKind
	}{
		{"rights.operate", r.Operate, []HolderKind{HolderOperator, HolderUser, HolderGroup}},
		{"rights.share_nothing", r.ShareNothing, []HolderKind{HolderOperator, HolderUser, HolderGroup}},
		{"rights.conduct", r.Conduct, []HolderKind{HolderHost}},
		{"rights.relay", r.Relay, []HolderKind{HolderHost}},
	} {
		var forms []string
		for _, k := range list.kinds {
			forms = append(forms, string(k)+":NAME")
		}
		for i, s := range list.have {
			key := fmt.Sprintf("%s[%d]", list.key, i)
			h, err := ParseHolder(s)
			want := strings.Join(forms, ", ")
			switch {
			case err != nil && slices.Contains(list.kinds, h.Kind):
				want = err.Error()
			case err == nil && slices.Index(list.have, s) < i:
				want = "each once: it stands there before"
			case err == nil && slices.Contains(list.kinds, h.Kind):
				continue
			}
			out = append(out, fault.Reason{
				Code: "config_value", Message: fmt.Sprintf("%s = %q: want %s", key, s, want), Want: want, Have: s, Change: "correct " + key,
			})
		}
	}
	return out
}
