package placement

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/store"
)

// backupPath is the one path that is not of Placement's API. The backup is taken
// by the server that runs, because the database's lock shuts others out.
const backupPath = "/berth/backup"

// snapshot is a backup: every record of the database at one moment.
type snapshot struct {
	Format    string          `json:"format"`
	Taken     time.Time       `json:"taken"`
	Providers table[provider] `json:"providers"`
	Consumers table[consumer] `json:"consumers"`
	Classes   table[custom]   `json:"classes"`
	Traits    table[custom]   `json:"traits"`
	// Fleet is what Beside has; a backup of an older server has none.
	Fleet map[string]json.RawMessage `json:"fleet,omitempty"`
}

// bucketFleet is Beside's bucket.
const bucketFleet = "fleet"

// serveBackup answers with a snapshot those who may do everything.
func (s *Server) serveBackup(w http.ResponseWriter, r *request) {
	if r.http.Method != http.MethodGet {
		refused := refuse(http.StatusMethodNotAllowed, "The method specified is not allowed for this resource.")
		refused.allow = http.MethodGet
		refused.write(w, r)
		return
	}
	if !r.who.operator {
		refuse(http.StatusForbidden, "a backup is given to operators alone").write(w, r)
		return
	}
	// Records are never changed in place, so holding the maps' copies is enough.
	var shot snapshot
	if err := s.state.view(r.http.Context(), func(b *base) {
		shot = snapshot{format, r.now.UTC(), maps.Clone(b.providers), maps.Clone(b.consumers), maps.Clone(b.classes), maps.Clone(b.traits), nil}
	}); err != nil {
		asRefusal(err).write(w, r)
		return
	}
	if s.beside != nil {
		shot.Fleet = s.beside.Backup()
	}
	// This fails only where the connection is none of net's, as in a test's recorder.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(backupTimeout))
	ok(shot).write(w, r)
}

// Backup asks the server at url (http, https or unix:/path) for every record it
// has at one moment, and puts them in the file at path, which it replaces as a
// whole or not at all. It speaks TLS where config is not nil. Errors: the kinds of a
// server out of reach (fault.Unavailable), one that refuses (fault.Forbidden) and
// one that is no Berth's (fault.Invalid).
func Backup(ctx context.Context, url string, config *tls.Config, path string) error {
	doing := fmt.Sprintf("back up placement at %s", url)
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	base := strings.TrimSuffix(url, "/")
	if socket, is := strings.CutPrefix(url, "unix:"); is {
		base = "http://placement"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, base+backupPath, nil)
	if err != nil {
		return fault.New(fault.Invalid, "%s: %w", doing, err)
	}
	q.Header.Set("X-Auth-Token", "admin")
	resp, err := transport.RoundTrip(q)
	if err != nil {
		return fault.New(fault.Unavailable, "%s: %w", doing, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.New(fault.Forbidden, "%s: it answered %s: a backup is given to operators alone", doing, resp.Status)
	default:
		return fault.New(fault.Invalid, "%s: it answered %s: it is no placement of Berth's", doing, resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fault.New(fault.Unavailable, "%s: the answer was cut: %w", doing, err)
	}
	if _, _, err := readSnapshot(b); err != nil {
		return fault.New(fault.Invalid, "%s: %w", doing, err)
	}
	if err := replaceFile(path, b); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Restore makes the database at db of the backup at path. The database must not be
// there: one that is must be moved away first. It appears whole or not at all.
// Agents then find older generations and records than they remember, and mend
// what is theirs.
func Restore(ctx context.Context, path, db string, log *slog.Logger) error {
	doing := fmt.Sprintf("restore placement database %s from %s", db, path)
	b, err := os.ReadFile(path)
	if err != nil {
		kind := fault.Invalid
		if errors.Is(err, fs.ErrNotExist) {
			kind = fault.NotFound
		}
		return fault.New(kind, "%s: %w", doing, err)
	}
	t, fleet, err := readSnapshot(b)
	if err != nil {
		return fault.New(fault.Invalid, "%s: %w", doing, err)
	}
	if _, err := os.Lstat(db); err == nil {
		return fault.Refuse(fault.Exists, doing, fault.Reason{
			Code: "database_exists", Message: "the database is there already", Change: "end its server and move it away first",
		})
	}
	mutations, err := t.mutations()
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	for _, key := range slices.Sorted(maps.Keys(fleet)) {
		mutations = append(mutations, store.Put(bucketFleet, key, fleet[key]))
	}
	part := db + ".restoring"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a restore that was cut
		return fmt.Errorf("%s: %w", doing, err)
	}
	to, err := store.Open(part, store.Options{Logger: log})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	err = to.Enqueue(append(mutations, store.Put(bucketFormat, "format", []byte(format)))...).Wait()
	if err = errors.Join(err, to.Close()); err == nil {
		err = os.Rename(part, db)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(db))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// readSnapshot reads a backup and checks that its records agree with each other. Those of Beside
// are as they are.
func readSnapshot(b []byte) (t *tx, fleet map[string]json.RawMessage, err error) {
	var s snapshot
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, nil, fmt.Errorf("it is no backup: %w", err)
	}
	if s.Format != format {
		return nil, nil, fmt.Errorf("its format is %q, this program knows %s", s.Format, format)
	}
	t = newTx(newBase(), time.Time{})
	for _, found := range []bool{copyRecords(t.providers, s.Providers), copyRecords(t.consumers, s.Consumers), copyRecords(t.classes, s.Classes), copyRecords(t.traits, s.Traits)} {
		if !found {
			return nil, nil, errors.New("it is no backup: records are missing")
		}
	}
	return t, s.Fleet, t.check()
}

// copyRecords is false where there is no table, or one has an empty record.
func copyRecords[T any](to, from table[T]) bool {
	for key, v := range from {
		if v == nil {
			return false
		}
		to[key] = v
	}
	return from != nil
}

// replaceFile writes a file durably under its own name or not at all. What is in
// it says who owns what, so others may not read it.
func replaceFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // of mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
