package conductor

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"berth/internal/fault"
)

// Records of other tools name a migration by a number, or by nothing but their key, as
// OpenStack's did before Queens. Such a one cannot be a consumer in Placement: what it
// moved holds a doubled allocation.

// nameRecords gives each unfinished migration of the journal that has no uuid one,
// durably and before anything else uses the record. Hosts and the steps' journal
// know it by its old name all the same: what they did under that name is repeated or
// undone under it. A record that cannot be read is left as it is.
//
// First the uuid is written into the old record, then the record goes to its new key:
// a crash in between finds the same uuid again.
func (c *Conductor) nameRecords(ctx context.Context, records, aborts map[string][]byte) error {
	for key, raw := range records {
		var kept stored
		if json.Unmarshal(raw, &kept) != nil || kept.Migration.Done() || kept.Migration.UUID == key && isUUID(key) {
			continue
		}
		m := &kept.Migration
		put := func(at string) error {
			b, err := json.Marshal(kept)
			if err != nil {
				return fault.New(fault.Internal, "write migration %s: %w", at, err)
			}
			records[at] = b
			return c.cfg.Store.Put(ctx, bucketMigrations, at, b)
		}
		if !isUUID(m.UUID) {
			if kept.Called = m.UUID; kept.Called == "" {
				kept.Called = key
			}
			id, err := uuid.NewRandomFromReader(c.cfg.Random)
			if err != nil {
				return fmt.Errorf("make a uuid: %w", err)
			}
			m.UUID = id.String()
			c.cfg.Logger.Warn("a migration record had no uuid and was given one", "record", key, "migration", m.UUID, "instance", m.InstanceUUID)
			if err := put(key); err != nil {
				return fmt.Errorf("give migration %s a uuid: %w", key, err)
			}
		}
		if m.UUID == key {
			continue
		}
		if _, there := records[m.UUID]; !there {
			if err := put(m.UUID); err != nil {
				return fmt.Errorf("give migration %s a uuid: %w", key, err)
			}
		}
		if wish, asked := aborts[key]; asked {
			aborts[m.UUID] = wish
			if err := c.cfg.Store.Put(ctx, bucketAborts, m.UUID, wish); err != nil {
				return fmt.Errorf("give migration %s a uuid: %w", key, err)
			}
			delete(aborts, key)
			if err := c.cfg.Store.Delete(ctx, bucketAborts, key); err != nil {
				return fmt.Errorf("give migration %s a uuid: %w", key, err)
			}
		}
		delete(records, key)
		if err := c.cfg.Store.Delete(ctx, bucketMigrations, key); err != nil {
			return fmt.Errorf("give migration %s a uuid: %w", key, err)
		}
	}
	return nil
}

func isUUID(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.String() == s
}
