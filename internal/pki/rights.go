package pki

import (
	"crypto/x509"
	"net/url"
	"slices"
	"strings"

	"berth/internal/fault"
)

// Right is something that a certificate's holder may do and others may not. Nobody has
// one who was not given it.
type Right string

// The rights.
const (
	// RightShareNothing lets its holder ask an agent to conduct a move between two hosts
	// that share nothing, and confirm, revert or abort one. It is a person's or a tool's.
	RightShareNothing Right = "share-nothing"
	// RightConduct lets a host's agent conduct moves between other hosts. It is a host's.
	RightConduct Right = "conduct"
	// RightRelay lets a host's agent pass on what its own callers ask of another: that agent takes
	// it for an operator's act. It is a host's.
	RightRelay Right = "relay"
	// RightFence lets a host write in the fleet's records that another is dead. It is a host's.
	RightFence Right = "fence"
)

const rightURN = "urn:berth:right:"

// holders says whose certificate a right counts in: a host's that claims an operator's
// right has none, or every host could do what only people were given.
var holders = map[Right]Role{RightShareNothing: RoleOperator, RightConduct: RoleHost, RightRelay: RoleHost, RightFence: RoleHost}

// RightsOf are the rights that a certificate claims, by its URIs urn:berth:right:NAME, in
// their order; also those that do not count.
func RightsOf(c *x509.Certificate) []Right {
	var out []Right
	for _, u := range c.URIs {
		if name, ok := strings.CutPrefix(u.String(), rightURN); ok {
			out = append(out, Right(name))
		}
	}
	return out
}

// Counts says whether a right is one of a role.
func (r Right) Counts(role Role) bool {
	want, known := holders[r]
	return known && want == role
}

// Gives says whether a certificate gives its holder a right: it claims it, and is of the
// role that can have it. It verifies nothing.
func Gives(c *x509.Certificate, r Right) bool {
	role, _ := RoleOf(c)
	return r.Counts(role) && slices.Contains(RightsOf(c), r)
}

// addRights writes rights into what is to be signed for a role. fault.Invalid names those
// that there are not, or that the role cannot have.
func addRights(t *x509.Certificate, role Role, rights []Right) error {
	for _, r := range rights {
		if !r.Counts(role) {
			var can []string
			for have, of := range holders {
				if of == role {
					can = append(can, string(have))
				}
			}
			slices.Sort(can)
			return fault.Refuse(fault.Invalid, "sign a certificate for "+t.Subject.CommonName, fault.Reason{
				Code: "right", Message: "no " + string(role) + " can have a right " + string(r), Have: string(r), Want: strings.Join(can, ", "),
				Change: "say --right " + strings.Join(can, ", --right ") + ", or none",
			})
		}
		u := &url.URL{Scheme: "urn", Opaque: strings.TrimPrefix(rightURN, "urn:") + string(r)}
		if !slices.ContainsFunc(t.URIs, func(have *url.URL) bool { return have.String() == u.String() }) {
			t.URIs = append(t.URIs, u)
		}
	}
	return nil
}
