package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strconv"

	"go.etcd.io/bbolt"
)

const (
	bucketMeta = "meta"

	keyApplication = "application"
	keySchema      = "schema"
	keyRecords     = "records"
	keyDigest      = "digest"

	application = "berth"
)

// schema is what this program writes, and how it gets there from older files.
type schema struct {
	version int
	// upgrades[n] turns a file of version n into one of version n+1, in one
	// transaction with the new version's number. It writes sealed values.
	upgrades map[int]func(*bbolt.Tx) error
}

// current is the schema drawn in the package's doc comment. Schema 1 is the
// first, so there is nothing to upgrade from.
var current = schema{version: 1}

// sealLength is how many bytes follow each value.
const sealLength = 8

// sealOf is the seal of one record. It is there against flipped bits and pages
// that lost their way, not against an adversary: who can write the file is root.
func sealOf(bucket, key string, value []byte) uint64 {
	h := fnv.New64a()
	h.Write([]byte(bucket))
	h.Write([]byte{0}) // neither names nor keys hold it, so that no two records share a text
	h.Write([]byte(key))
	h.Write([]byte{0})
	h.Write(value)
	return h.Sum64()
}

// sealed is value with its seal behind it.
func sealed(value []byte, seal uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, len(value)+sealLength), value...), seal)
}

// unsealed splits a stored value. The bytes are the store's own.
func unsealed(stored []byte) (value []byte, seal uint64, ok bool) {
	if len(stored) < sealLength {
		return nil, 0, false
	}
	n := len(stored) - sealLength
	return stored[:n], binary.BigEndian.Uint64(stored[n:]), true
}

// census counts the records of a file: two files with the same census hold the
// same records, but for chance.
type census struct {
	records uint64
	digest  uint64 // Σ seals, modulo 2^64: cheap to keep with each write, and in no order
}

func (c *census) add(seal uint64)    { c.records++; c.digest += seal }
func (c *census) remove(seal uint64) { c.records--; c.digest -= seal }

// identity is what the meta bucket says.
type identity struct {
	application string
	version     int
	census      census
}

// parseIdentity reads the records of the meta bucket.
func parseIdentity(get func(key string) string) (identity, error) {
	id := identity{application: get(keyApplication)}
	var errVersion, errRecords, errDigest error
	id.version, errVersion = strconv.Atoi(get(keySchema))
	id.census.records, errRecords = strconv.ParseUint(get(keyRecords), 10, 64)
	id.census.digest, errDigest = strconv.ParseUint(get(keyDigest), 16, 64)
	for _, err := range []error{errVersion, errRecords, errDigest} {
		if err != nil {
			return id, fmt.Errorf("bucket meta: %w", err)
		}
	}
	return id, nil
}

// readIdentity reads the meta bucket within a transaction.
func readIdentity(tx *bbolt.Tx) (identity, error) {
	b := tx.Bucket([]byte(bucketMeta))
	if b == nil {
		return identity{}, fmt.Errorf("bucket meta is missing")
	}
	return parseIdentity(func(key string) string { return string(b.Get([]byte(key))) })
}

// writeIdentity writes the meta bucket within a transaction.
func writeIdentity(tx *bbolt.Tx, id identity) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucketMeta))
	if err != nil {
		return err
	}
	for _, kv := range [][2]string{
		{keyApplication, id.application},
		{keySchema, strconv.Itoa(id.version)},
		{keyRecords, strconv.FormatUint(id.census.records, 10)},
		{keyDigest, fmt.Sprintf("%016x", id.census.digest)},
	} {
		if string(b.Get([]byte(kv[0]))) == kv[1] {
			continue
		}
		if err := b.Put([]byte(kv[0]), []byte(kv[1])); err != nil {
			return err
		}
	}
	return nil
}

// examine reads a whole file as bytes and says whether it is a database of
// Berth's with all its records, or why not. It gives the version and what a
// person should be warned of.
func (s schema) examine(im *image) (version int, err error) {
	var seen census
	var garbled error // told last: another program's records have no seals, and a newer Berth's may have others
	about := map[string]string{}
	err = im.walk(func(bucket, key, stored []byte) error {
		if string(bucket) == bucketMeta {
			about[string(key)] = string(stored)
			return nil
		}
		value, seal, ok := unsealed(stored)
		if garbled == nil && (!ok || seal != sealOf(string(bucket), string(key), value)) {
			garbled = fmt.Errorf("record %q of bucket %s is garbled", key, bucket)
		}
		seen.add(seal)
		return nil
	})
	if err != nil {
		return 0, err
	}
	if about[keyApplication] != application {
		return 0, foreign{fmt.Errorf("it is a database of another program (application %q)", about[keyApplication])}
	}
	id, err := parseIdentity(func(key string) string { return about[key] })
	switch {
	case err == nil && id.version > s.version:
		return 0, newer{fmt.Errorf("it was written by a newer Berth: schema %d, this one knows up to %d", id.version, s.version)}
	case garbled != nil:
		return 0, garbled
	case err != nil:
		return 0, err
	case id.version < 1:
		return 0, fmt.Errorf("its schema is %d", id.version)
	case id.census != seen:
		return 0, fmt.Errorf("it should hold %d records and holds %d, or other ones: records were lost",
			id.census.records, seen.records)
	}
	return id.version, nil
}

// upgrade brings an open file to this schema, one version a transaction, and
// counts its records anew.
func (s schema) upgrade(b *bbolt.DB, from int) error {
	for v := from; v < s.version; v++ {
		step, ok := s.upgrades[v]
		if !ok {
			return fmt.Errorf("no way from schema %d to %d", v, v+1)
		}
		err := b.Update(func(tx *bbolt.Tx) error {
			if err := step(tx); err != nil {
				return err
			}
			seen, err := count(tx)
			if err != nil {
				return err
			}
			return writeIdentity(tx, identity{application, v + 1, seen})
		})
		if err != nil {
			return fmt.Errorf("upgrade from schema %d to %d: %w", v, v+1, err)
		}
	}
	return nil
}

// count takes the census of an open file.
func count(tx *bbolt.Tx) (census, error) {
	var seen census
	err := tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		if string(name) == bucketMeta {
			return nil
		}
		return b.ForEach(func(key, stored []byte) error {
			value, seal, ok := unsealed(stored)
			if !ok || seal != sealOf(string(name), string(key), value) {
				return fmt.Errorf("record %q of bucket %s is not sealed", key, name)
			}
			seen.add(seal)
			return nil
		})
	})
	return seen, err
}
