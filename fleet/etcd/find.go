package etcd

import (
	"context"

	"berth/fleet"
)

var _ fleet.Finder = (*Store)(nil)

// ListOf reads the records by prefix that name a host, or none, in pages of one moment. What names
// another host is dropped page by page.
func (s *Store) ListOf(ctx context.Context, prefix, host string) ([]fleet.Record, error) {
	return s.list(ctx, prefix, func(value []byte) bool {
		if host == "" {
			return true
		}
		of := fleet.HostOf(value)
		return of == "" || of == host
	})
}

// List reads records by prefix, in pages of one moment.
func (s *Store) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	return s.ListOf(ctx, prefix, "")
}
