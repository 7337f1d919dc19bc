package placement

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/placement/placementtest"
	pc "berth/placementclient"
)

// claimedFrom makes a provider that is claimed from.
func claimedFrom(t *testing.T, c *pc.Client) {
	t.Helper()
	ctx := t.Context()
	must(t, c.EnsureResourceClass(ctx, "CUSTOM_KEPT"))
	must(t, c.EnsureTrait(ctx, "CUSTOM_KEPT"))
	for _, p := range []pc.NewProvider{{UUID: id(1), Name: "host-a"}, {UUID: id(2), Name: "host-a_cell", ParentProviderUUID: id(1)}} {
		_, err := c.CreateProvider(ctx, p)
		must(t, err)
	}
	_, err := c.PutInventories(ctx, id(2), pc.Inventories{Inventories: map[string]pc.Inventory{"CUSTOM_KEPT": {Total: 4, AllocationRatio: 1.5}}})
	must(t, err)
	_, err = c.PutTraits(ctx, id(2), pc.Traits{Generation: 1, Traits: []string{"CUSTOM_KEPT"}})
	must(t, err)
	must(t, c.PutAllocations(ctx, id(3), holding(id(2), pc.Resources{"CUSTOM_KEPT": 3}, pc.ConsumerInstance, nil)))
}

func TestBackup_OfARunningServerIsRestoredWhole(t *testing.T) {
	dir := t.TempDir()
	s := on(t, filepath.Join(dir, "placement.db"))
	h := serve(t, s)
	placementtest.ClientSuite(t, placementtest.Server{URL: h.URL})
	claimedFrom(t, client(t, h.URL, 39))
	before := dump(t, s)
	file := filepath.Join(dir, "backup")
	must(t, os.WriteFile(file, []byte("yesterday's"), 0o644))
	must(t, Backup(t.Context(), h.URL, nil, file))
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the backup's mode is %v (%v)", st.Mode(), err)
	}
	// What comes after it is not in it.
	must(t, client(t, h.URL, 39).DeleteAllocations(t.Context(), id(3)))
	restored := filepath.Join(dir, "restored.db")
	must(t, Restore(t.Context(), file, restored, nil))
	if d := cmp.Diff(before, dump(t, on(t, restored))); d != "" {
		t.Errorf("restored state (-want +got)\n%s", d)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range left {
		if strings.HasPrefix(f.Name(), ".") || strings.HasSuffix(f.Name(), ".restoring") {
			t.Errorf("%s is left behind", f.Name())
		}
	}
}

func TestRestore_OverALeftoverButNotOverADatabase(t *testing.T) {
	dir := t.TempDir()
	h := serve(t, memory(t))
	claimedFrom(t, client(t, h.URL, 39))
	file, db := filepath.Join(dir, "backup"), filepath.Join(dir, "placement.db")
	must(t, Backup(t.Context(), h.URL, nil, file))
	must(t, os.WriteFile(db+".restoring", []byte("cut"), 0o600))
	must(t, Restore(t.Context(), file, db, nil))
	kept, err := os.ReadFile(db)
	must(t, err)
	wantKind(t, Restore(t.Context(), file, db, nil), fault.Exists, "")
	if again, err := os.ReadFile(db); err != nil || string(again) != string(kept) {
		t.Errorf("a refused restore changed the database (%v)", err)
	}
	wantKind(t, Restore(t.Context(), filepath.Join(dir, "none"), filepath.Join(dir, "new.db"), nil), fault.NotFound, "")
}

func TestRestore_RefusesWhatIsNoWholeBackup(t *testing.T) {
	dir := t.TempDir()
	h := serve(t, memory(t))
	claimedFrom(t, client(t, h.URL, 39))
	file := filepath.Join(dir, "backup")
	must(t, Backup(t.Context(), h.URL, nil, file))
	b, err := os.ReadFile(file)
	must(t, err)
	whole := string(b)
	for name, text := range map[string]string{
		"empty": "", "cut": whole[:len(whole)/2], "an object": "{}", "newer": strings.Replace(whole, `"format":"1"`, `"format":"2"`, 1),
		"without tables":     `{"format":"1"}`,
		"empty record":       `{"format":"1","providers":{"` + id(1) + `":null},"consumers":{},"classes":{},"traits":{}}`,
		"missing provider":   strings.Replace(whole, `"parent":"`+id(1), `"parent":"`+id(8), 1),
		"missing inventory":  strings.Replace(whole, `"inventories":{"CUSTOM_KEPT"`, `"inventories":{"CUSTOM_LOST"`, 1),
		"wrongly named host": strings.Replace(whole, `"name":"host-a_cell"`, `"name":"host-a"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if text == whole {
				t.Fatal("nothing is wrong with it")
			}
			bad, db := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "placement.db")
			must(t, os.WriteFile(bad, []byte(text), 0o600))
			wantKind(t, Restore(t.Context(), bad, db, nil), fault.Invalid, "")
			if _, err := os.Stat(db); err == nil {
				t.Error("a database was made")
			}
		})
	}
}

func TestBackup_IsGivenToOperatorsAlone(t *testing.T) {
	site := newSite(t)
	s := running(t, site.options())
	file := filepath.Join(t.TempDir(), "backup")
	as := func(who, name string) *tls.Config {
		pair, err := tls.LoadX509KeyPair(filepath.Join(site.dir, who, name+".crt"), filepath.Join(site.dir, who, name+".key"))
		must(t, err)
		return &tls.Config{RootCAs: site.pool, Certificates: []tls.Certificate{pair}}
	}
	wantKind(t, Backup(t.Context(), "https://"+s.Addr(), as("host-a", "host"), file), fault.Forbidden, "")
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was made of a refusal")
	}
	must(t, Backup(t.Context(), "https://"+s.Addr(), as("op", "operator"), file))
	wantKind(t, Backup(t.Context(), "https://"+s.Addr(), &tls.Config{RootCAs: site.pool}, file), fault.Unavailable, "")
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the older backup is gone: %v", err)
	}
}

func TestBackup_OverAUnixSocketAndOfOthers(t *testing.T) {
	dir := t.TempDir()
	socket := "unix:" + filepath.Join(dir, "s")
	running(t, Options{Listen: socket})
	must(t, Backup(t.Context(), socket, nil, filepath.Join(dir, "backup")))
	wantKind(t, Backup(t.Context(), "unix:"+filepath.Join(dir, "none"), nil, filepath.Join(dir, "backup")), fault.Unavailable, "")
	// OpenStack's own answers as to any path it has not.
	h := serve(t, memory(t))
	wantKind(t, Backup(t.Context(), h.URL+"/elsewhere", nil, filepath.Join(dir, "other")), fault.Invalid, "")
	for _, c := range []struct {
		method, token string
		want          int
	}{{"GET", "", 401}, {"GET", "user:project", 403}, {"POST", "admin", 405}} {
		q, err := http.NewRequestWithContext(t.Context(), c.method, h.URL+backupPath, nil)
		must(t, err)
		if c.token != "" {
			q.Header.Set("X-Auth-Token", c.token)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with token %q is answered %d, want %d", c.method, c.token, resp.StatusCode, c.want)
		}
	}
}
