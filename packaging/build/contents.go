package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// item is one file or folder of the packages.
type item struct {
	to   string      // where it lies on a host
	from string      // a file of the checkout, or text has it
	text []byte      //
	mode fs.FileMode // 0: 0644, of folders 0755
	kind string      // as nfpm calls it: empty, dir, config|noreplace, license
	only string      // of one packer, empty: of all
}

const (
	config = "config|noreplace"
	share  = "/usr/share/berth/"
	doc    = "/usr/share/doc/berth/"
)

// contents is all that the packages hold. The hook is not where libvirt looks for it:
// the scripts put it there and take it away, since a file of configuration would stay
// when the package goes, and what stayed would refuse guests.
func (r *release) contents(ctx context.Context, parts []part, sbom []byte) ([]item, error) {
	readme, err := os.ReadFile(filepath.Join(r.root, "README.md"))
	if err != nil {
		return nil, err
	}
	// Where it is installed, what it leads to lies elsewhere than in a checkout.
	installed := func(licence string) []byte {
		return []byte(strings.NewReplacer("](packaging/", "](../../berth/", "](LICENSE)", "]("+licence+")").Replace(string(readme)))
	}
	items := []item{
		{to: "/usr/bin/berth", from: r.binary, mode: 0o755},
		{to: "/usr/lib/sysusers.d/berth.conf", from: "systemd/berth.sysusers.conf"},
		{to: "/usr/lib/tmpfiles.d/berth.conf", from: "systemd/berth.tmpfiles.conf"},

		// Tokens may stand in it. Who may not read it finds the agent at its usual place.
		{to: "/etc/berth/berth.toml", from: "packaging/berth.toml", mode: 0o640, kind: config},
		{to: "/etc/berth/berth.toml.d", kind: "dir", mode: 0o750},
		{to: "/etc/berth/flavors.d", kind: "dir"},
		{to: "/etc/berth/hooks.d", kind: "dir"},
		{to: "/etc/berth/provider_config", kind: "dir"},
		{to: "/etc/berth/pki", kind: "dir", mode: 0o700},

		{to: "/etc/logrotate.d/berth", from: "packaging/logrotate/berth", kind: config},

		{to: share + "libvirt-hook", from: "packaging/hooks/qemu.d/50-berth", mode: 0o755},
		{to: "/etc/libvirt/hooks/qemu.d", kind: "dir", only: "deb"},
		{to: "/etc/apparmor.d/abstractions/berth-stream", from: "packaging/apparmor/berth-stream", kind: config, only: "deb"},
		{to: share + "apparmor/berth-stream", from: "packaging/apparmor/berth-stream", only: "rpm"},

		{to: doc + "copyright", from: "packaging/copyright", only: "deb"},
		{to: doc + "changelog.gz", text: packed(r.debianChangelog()), only: "deb"},
		{to: "/usr/share/lintian/overrides/berth", from: "packaging/lintian-overrides", only: "deb"},
		{to: "/usr/share/licenses/berth/LICENSE", from: "LICENSE", kind: "license", only: "rpm"},
		{to: doc + "notices.gz", text: packed(allNotices(parts))},
		{to: doc + "berth.cdx.json", text: sbom},
		{to: doc + "README.md", text: installed("copyright"), only: "deb"},
		{to: doc + "README.md", text: installed("../../licenses/berth/LICENSE"), only: "rpm"},
		{to: doc + "ARCHITECTURE.md", from: "ARCHITECTURE.md"},
		{to: doc + "CHANGELOG.md", from: "CHANGELOG.md"},
	}
	for _, tree := range []struct{ from, suffix, to string }{
		{"systemd", ".service", "/usr/lib/systemd/system/"},
		{"systemd", ".socket", "/usr/lib/systemd/system/"},
		{"docs", ".md", doc + "docs/"},
		{"docs", ".svg", doc + "docs/"},
		{"packaging/prometheus", ".yml", share + "prometheus/"},
		{"packaging/prometheus", ".yaml", share + "prometheus/"},
		{"packaging/grafana", ".json", share + "grafana/"},
	} {
		found, err := r.tracked(ctx, tree.from, tree.suffix)
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			if strings.Contains(file, ".test.") {
				continue
			}
			items = append(items, item{to: tree.to + strings.TrimPrefix(file, tree.from+"/"), from: file})
		}
	}
	written, err := r.written(ctx)
	if err != nil {
		return nil, err
	}
	items = append(items, written...)
	return append(items, folders(items)...), nil
}

// folders are those that only Berth has files in. dpkg looks after them by itself; an rpm
// leaves behind what it does not name.
func folders(items []item) []item {
	var out []item
	for _, it := range items {
		for dir := path.Dir(it.to); strings.Contains(dir+"/", "/berth/"); dir = path.Dir(dir) {
			if it.only != "deb" && !slices.ContainsFunc(out, func(o item) bool { return o.to == dir }) {
				out = append(out, item{to: dir, kind: "dir", only: "rpm"})
			}
		}
	}
	return out
}

// tracked are the files of a folder that git knows: what else lies in a checkout is
// nobody's release.
func (r *release) tracked(ctx context.Context, dir, suffix string) ([]string, error) {
	text, err := output(ctx, r.root, "git", "ls-files", "--", dir+"/*"+suffix)
	if err != nil {
		return nil, err
	}
	return strings.Fields(text), nil
}

// written is what the binary says of itself: its manual, and completions for three shells.
func (r *release) written(ctx context.Context) ([]item, error) {
	ask := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, r.runs, args...)
		// What the environment says shows in the defaults of flags.
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C.UTF-8"}
		return said(cmd)
	}
	dir := filepath.Join(r.work, "man")
	if _, err := ask("man", dir, "--date", r.time.Format(time.DateOnly), "--release", r.version); err != nil {
		return nil, err
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var items []item
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(dir, page.Name()))
		if err != nil {
			return nil, err
		}
		section := strings.TrimPrefix(filepath.Ext(page.Name()), ".")
		items = append(items, item{to: "/usr/share/man/man" + section + "/" + page.Name() + ".gz", text: packed(string(text))})
	}
	for _, c := range []struct{ shell, to, only string }{
		{"bash", "/usr/share/bash-completion/completions/berth", ""},
		{"fish", "/usr/share/fish/vendor_completions.d/berth.fish", ""},
		{"zsh", "/usr/share/zsh/vendor-completions/_berth", "deb"},
		{"zsh", "/usr/share/zsh/site-functions/_berth", "rpm"},
	} {
		text, err := ask("completion", c.shell)
		if err != nil {
			return nil, err
		}
		items = append(items, item{to: c.to, text: []byte(text + "\n"), only: c.only})
	}
	return items, nil
}

// packed is a text as gzip -9n makes it: without a name and a time.
func packed(text string) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a level that exists
	_, _ = w.Write([]byte(text))                          // a buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// debianChangelog is the one entry that Debian's tools want; what changed is told to
// operators in CHANGELOG.md.
func (r *release) debianChangelog() string {
	return fmt.Sprintf("berth (%s) unstable; urgency=medium\n\n  * What changed stands in CHANGELOG.md beside this file.\n\n -- %s  %s\n",
		r.version, r.vendor, r.time.Format(time.RFC1123Z))
}
