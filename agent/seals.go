package agent

import (
	"encoding/binary"
	"time"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
)

// sealDomain is what kind of record a commit is; see pki.Identity.Sign. The number changes
// with canonical.
const sealDomain = "berth commit, version 1"

// seals sign this host's commits with its own key, and check those of other hosts by the
// CA that all are known by. It implements host.Seals.
type seals struct {
	identity *pki.Identity // nil without certificates
	clock    runtime.Runtime
}

// canonical is a commit, its Seal aside, as it is signed: field by field, each with its
// length, so that neither the spelling of JSON nor a field that another version adds
// changes it.
func canonical(c migration.Commit) []byte {
	var out []byte
	text := func(s string) {
		out = append(binary.BigEndian.AppendUint64(out, uint64(len(s))), s...)
	}
	text(c.Instance)
	text(c.Migration)
	out = binary.BigEndian.AppendUint64(out, uint64(c.Attempt))
	out = binary.BigEndian.AppendUint64(out, c.Epoch)
	text(c.From)
	text(c.To)
	text(string(c.Power))
	return out
}

// Seal implements host.Seals.
func (s seals) Seal(c migration.Commit) (*migration.Seal, error) {
	if s.identity == nil {
		return nil, fault.New(fault.Unavailable, "seal the commit of instance %s: this host has no certificate", c.Instance)
	}
	sig, err := s.identity.Sign(sealDomain, canonical(c), s.clock.Now())
	if err != nil {
		return nil, err
	}
	return &migration.Seal{Chain: sig.Chain, Signature: sig.Value, At: sig.At}, nil
}

// sealKeeps is how long a seal counts: less than a receiver remembers what it has accepted,
// or a guest that has gone on since could be brought a second time by the seal of the first.
// Who comes later has it made anew.
const sealKeeps = claims.TombstoneKeep - 24*time.Hour

// Check implements host.Seals.
func (s seals) Check(c migration.Commit) error {
	switch {
	case s.identity == nil:
		return fault.New(fault.Unavailable, "check the seal of host %s: this host has no certificates", c.From)
	case c.Seal == nil:
		return s.identity.Verify(sealDomain, nil, pki.Signature{}, c.From, s.clock.Now())
	}
	if age := s.clock.Now().Sub(c.Seal.At); age > sealKeeps {
		return fault.Refuse(fault.Forbidden, "check the seal of host "+c.From, fault.Reason{
			Code: "seal_too_old", Message: "it was made " + age.Round(time.Hour).String() + " ago", Want: "at most " + sealKeeps.String(), Have: c.Seal.At.UTC().Format(time.RFC3339),
			Change: "ask host " + c.From + " for its record anew; look whether the clocks of both hosts are right",
		})
	}
	return s.identity.Verify(sealDomain, canonical(c), pki.Signature{Chain: c.Seal.Chain, Value: c.Seal.Signature, At: c.Seal.At}, c.From, s.clock.Now())
}
