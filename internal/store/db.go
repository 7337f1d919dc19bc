package store

import "context"

const bucketMeta = "meta"

// DB is an open database.
type DB struct{}

func Open(path string, o Options) (*DB, error)                                   { return &DB{}, nil }
func (db *DB) Enqueue(mutations ...Mutation) *Pending                            { return settled(nil) }
func (db *DB) Put(ctx context.Context, bucket, key string, value []byte) error   { return nil }
func (db *DB) Delete(ctx context.Context, bucket, key string) error              { return nil }
func (db *DB) Get(ctx context.Context, bucket, key string) ([]byte, bool, error) { return nil, false, nil }
func (db *DB) List(ctx context.Context, bucket string) (map[string][]byte, error) {
	return nil, nil
}
func (db *DB) Created() bool   { return false }
func (db *DB) Commits() uint64 { return 0 }
func (db *DB) Close() error    { return nil }
