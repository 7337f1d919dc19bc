package packages

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// database writes a database of vulnerabilities as https://go.dev/doc/security/vuln/database
// describes it, with one that all versions of a module have; none for an empty module.
func database(t *testing.T, module string) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("index/db.json", `{"modified":"2026-01-01T00:00:00Z"}`)
	if module == "" {
		put("index/modules.json", "[]")
		put("index/vulns.json", "[]")
		return dir
	}
	put("index/modules.json", fmt.Sprintf(`[{"path":%q,"vulns":[{"id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z"}]}]`, module))
	put("index/vulns.json", `[{"id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z"}]`)
	put("ID/GO-2026-0001.json", fmt.Sprintf(`{"schema_version":"1.3.1","id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z","published":"2026-01-01T00:00:00Z",
"summary":"made up for a test","details":"made up for a test","affected":[{"package":{"name":%q,"ecosystem":"Go"},
"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],"ecosystem_specific":{"imports":[{"path":%q}]}}],"database_specific":{"url":"https://pkg.go.dev/vuln/GO-2026-0001"}}`, module, module))
	return dir
}

// The release's check, on a database of which it is known what it must find.
func TestVulnerabilities_AreFoundByTheReleasesCheck(t *testing.T) {
	tree := unpacked(t)
	info, err := buildinfo.ReadFile(filepath.Join(tree, "usr/bin/berth"))
	if err != nil || len(info.Deps) == 0 {
		t.Fatalf("the binary does not say what it is made of: %v", err)
	}
	for _, tt := range []struct {
		module string
		finds  bool
	}{{"", false}, {"go.etcd.io/bbolt", true}, {"example.org/not/in/here", false}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "packaging/vulnerabilities", database(t, tt.module), filepath.Join(tree, "usr/bin/berth"))
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		cancel()
		if found := strings.Contains(string(out), "GO-2026-0001"); found != tt.finds || (err != nil) != tt.finds {
			t.Errorf("a vulnerability of %q: found %v (%v), want %v\n%s", tt.module, found, err, tt.finds, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "packaging/vulnerabilities", filepath.Join(t.TempDir(), "nothing"))
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "holds no database") {
		t.Errorf("without a database: %v\n%s", err, out)
	}
}
