package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"time"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
)

// seals are a machine's key and those that it knows: what a conductor carries is what its
// giver has signed. Nothing in a run signs with another's key.
type seals struct{ m *machine }

var _ host.Seals = seals{}

// Seal implements host.Seals.
func (s seals) Seal(c migration.Commit) (*migration.Seal, error) {
	if c.From != s.m.name {
		s.m.w.violate("%s seals a commit of %s", s.m.name, c.From)
	}
	return &migration.Seal{Chain: [][]byte{[]byte(c.From)}, Signature: s.sign(c), At: time.Unix(0, 0)}, nil
}

func (s seals) sign(c migration.Commit) []byte {
	c.Seal = nil
	text, err := json.Marshal(c)
	if err != nil {
		s.m.w.violate("a commit cannot be written: %v", err)
	}
	sum := sha256.Sum256(append([]byte("the key of "+c.From+" "), text...))
	return sum[:]
}

// Check implements host.Seals.
func (s seals) Check(c migration.Commit) error {
	if c.Seal == nil || len(c.Seal.Chain) != 1 || string(c.Seal.Chain[0]) != c.From || !bytes.Equal(c.Seal.Signature, s.sign(c)) {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonSeal, Message: "it is not " + c.From + "'s own"})
	}
	return nil
}

// seals are the machine's, or none.
func (a *agent) seals() host.Seals {
	if m := a.w.mutant; m != nil && m.NoSeals {
		return nil
	}
	return seals{a.m}
}
