package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"time"

	"berth/internal/fault"
)

// Signature is a host's, over a record that others carry.
type Signature struct {
	Chain [][]byte // DER: the host's certificate, and those between it and the CA
	Value []byte
	// At is when it was made, by the signer's clock and under the signature: when the
	// certificate had to be valid.
	At time.Time
}

// longestChain bounds the certificates that are read of somebody's chain. Arbitrary.
const longestChain = 8

// Sign signs a record with the identity's key. domain says what kind of record it is, and
// a signature is good for no other: nobody can have a host sign one thing and show it as
// another. TLS signs with the same key, and never what begins like this.
func (id *Identity) Sign(domain string, record []byte, at time.Time) (Signature, error) {
	key, ok := id.Certificate.PrivateKey.(crypto.Signer)
	if !ok {
		return Signature{}, fault.New(fault.Internal, "sign a %s: the key is a %T, which signs nothing", domain, id.Certificate.PrivateKey)
	}
	s := Signature{Chain: id.Certificate.Certificate, At: at.UTC().Round(0)}
	text, hash, options := signed(domain, record, s.At), crypto.Hash(0), crypto.SignerOpts(crypto.Hash(0))
	switch key.Public().(type) {
	case *rsa.PublicKey:
		hash, options = crypto.SHA256, &pss
	case *ecdsa.PublicKey:
		hash, options = crypto.SHA256, crypto.SHA256
	}
	if hash != 0 {
		sum := sha256.Sum256(text)
		text = sum[:]
	}
	var err error
	if s.Value, err = key.Sign(rand.Reader, text, options); err != nil {
		return Signature{}, fmt.Errorf("sign a %s: %w", domain, err)
	}
	return s, nil
}

var pss = rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}

// Verify says whether a record was signed by the host called name: nil, or fault.Forbidden
// with the reason. The chain is held against this side's CA as of the signing, so that one
// that has run out or was replaced since still counts, but not one of a time to come.
func (id *Identity) Verify(domain string, record []byte, s Signature, name string, now time.Time) error {
	doing := "check the seal of host " + name
	refuse := func(code, message, change string) error {
		return fault.Refuse(fault.Forbidden, doing, fault.Reason{Code: code, Message: message, Want: name, Change: change})
	}
	if len(s.Chain) == 0 || len(s.Value) == 0 {
		return refuse("seal_missing", "there is none", "ask host "+name+" for its record anew")
	}
	if len(s.Chain) > longestChain {
		return refuse("seal_invalid", fmt.Sprintf("it comes with %d certificates: want at most %d", len(s.Chain), longestChain), "ask host "+name+" for its record anew")
	}
	if early := s.At.Sub(now); early > skew {
		return refuse("seal_from_the_future", "it is of "+s.At.UTC().Format(time.RFC3339)+", and it is "+now.UTC().Format(time.RFC3339)+" here", "set the clocks of both hosts right")
	}
	leaf, err := x509.ParseCertificate(s.Chain[0])
	if err != nil {
		return refuse("seal_invalid", "its certificate cannot be read: "+err.Error(), "ask host "+name+" for its record anew")
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: id.Roots, Intermediates: intermediates(s.Chain), CurrentTime: s.At,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		r := CertificateReason(err, Describe(leaf), "signed by "+id.caWords())
		r.Message = "at the time of the seal, " + s.At.UTC().Format(time.RFC3339) + ": " + r.Message
		return fault.Refuse(fault.Forbidden, doing, r)
	}
	if !Covers(leaf, name) {
		return fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "certificate_wrong_name", Message: "it was made with the " + Describe(leaf), Want: name, Have: Describe(leaf),
			Change: "only host " + name + " can seal this; look who has carried it",
		})
	}
	if !matches(leaf.PublicKey, signed(domain, record, s.At), s.Value) {
		return refuse("seal_broken", "the record is not the one that was sealed, or the seal is forged", "ask host "+name+" for its record anew; look who has carried it")
	}
	return nil
}

// signed is what the signature is over: each part with its length, so that no two records
// can read the same.
func signed(domain string, record []byte, at time.Time) []byte {
	out := []byte("berth signature, version 1\x00")
	for _, part := range [][]byte{[]byte(domain), binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), record} {
		out = binary.BigEndian.AppendUint64(out, uint64(len(part)))
		out = append(out, part...)
	}
	return out
}

// matches holds a signature against a key of any type that certificates here have.
func matches(key any, text, signature []byte) bool {
	sum := sha256.Sum256(text)
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPSS(key, crypto.SHA256, sum[:], signature, &pss) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, text, signature)
	}
	return false
}
