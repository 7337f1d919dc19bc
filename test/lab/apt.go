package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// source is one Debian archive the machine already uses, as one line of
// sources.list(5) would say it.
type source struct {
	uri      string
	suite    string
	signedBy string // a keyring file; empty means apt's trusted ones
}

// debianSources reads the machine's own apt sources, in both spellings
// (sources.list and deb822 *.sources), and keeps the binary archives of the
// release called codename. Other vendors' archives are left out: an archive
// that is down must not stop an install that needs nothing from it.
func debianSources(etcApt, codename string) ([]source, error) {
	var out []source
	add := func(s source) {
		ofRelease := s.suite == codename || strings.HasPrefix(s.suite, codename+"-")
		if ofRelease && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	lists, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.list"))
	for _, path := range append([]string{filepath.Join(etcApt, "sources.list")}, lists...) {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		for _, s := range parseList(string(b)) {
			add(s)
		}
	}
	stanzas, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.sources"))
	for _, path := range stanzas {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, s := range parseDeb822(string(b)) {
			add(s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s names no archive of Debian %s", etcApt, codename)
	}
	return out, nil
}

// parseList reads one-line sources: deb [options] uri suite component…
func parseList(text string) []source {
	var out []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var s source
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			options, after, _ := strings.Cut(rest[1:], "]")
			for o := range strings.FieldsSeq(options) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.signedBy = v
				}
			}
			rest = after
		}
		f := strings.Fields(rest)
		if len(f) < 3 || !slices.Contains(f[2:], "main") {
			continue
		}
		s.uri, s.suite = f[0], f[1]
		out = append(out, s)
	}
	return out
}

// parseDeb822 reads stanzas of Types, URIs, Suites, Components, Signed-By,
// Enabled. A key written out inside Signed-By cannot be passed on in a one-line
// source and is left to apt's trusted keyrings.
func parseDeb822(text string) []source {
	var out []source
	for stanza := range strings.SplitSeq(strings.ReplaceAll(text, "\r", "")+"\n", "\n\n") {
		field := map[string]string{}
		last := ""
		for line := range strings.Lines(stanza) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
				field[last] += " " + strings.TrimSpace(line)
				continue
			}
			k, v, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			last = strings.ToLower(strings.TrimSpace(k))
			field[last] = strings.TrimSpace(v)
		}
		if !slices.Contains(strings.Fields(field["types"]), "deb") || strings.EqualFold(field["enabled"], "no") ||
			!slices.Contains(strings.Fields(field["components"]), "main") {
			continue
		}
		key := field["signed-by"]
		if !strings.HasPrefix(key, "/") || len(strings.Fields(key)) != 1 {
			key = ""
		}
		for uri := range strings.FieldsSeq(field["uris"]) {
			for suite := range strings.FieldsSeq(field["suites"]) {
				out = append(out, source{uri: uri, suite: suite, signedBy: key})
			}
		}
	}
	return out
}

// apt is apt-get with lists and archives of its own below dir: the machine's
// sources, lists and archive cache stay as they are. The package database is
// the machine's.
type apt struct {
	dir      string
	codename string
	updated  bool
	log      io.Writer
}

// options point apt-get at the private state. Sandboxing is off because the
// unprivileged user that apt downloads as may not reach dir.
func (a *apt) options() []string {
	return []string{
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"),
		"-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + filepath.Join(a.dir, "lists"),
		"-o", "Dir::Cache::archives=" + filepath.Join(a.dir, "archives"),
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3",
		// Without it apt-get update succeeds when no archive was reached.
		"-o", "APT::Update::Error-Mode=any",
		"-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=900", "-o", "Dpkg::Use-Pty=0",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
	}
}

// update reads the package lists once per apt value.
func (a *apt) update(ctx context.Context) error {
	if a.updated {
		return nil
	}
	sources, err := debianSources("/etc/apt", a.codename)
	if err != nil {
		return fmt.Errorf("find the machine's Debian archive: %w", err)
	}
	for _, s := range sources {
		if s.suite == a.codename {
			sources = append(sources, source{uri: s.uri, suite: a.codename + "-backports", signedBy: s.signedBy})
			break
		}
	}
	var b strings.Builder
	for _, s := range slices.Compact(sources) {
		option := ""
		if s.signedBy != "" {
			option = "[signed-by=" + s.signedBy + "] "
		}
		fmt.Fprintf(&b, "deb %s%s %s main\n", option, s.uri, s.suite)
	}
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	fmt.Fprintln(a.log, "  reading package lists")
	if _, err := a.run(ctx, "", "apt-get", "-qq", "update"); err != nil {
		return err
	}
	a.updated = true
	return nil
}

// run is one apt command with the private state.
func (a *apt) run(ctx context.Context, dir string, tool string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, tool, append(a.options(), args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	return output(cmd)
}

// masked are the maintainer scripts' ways to start, enable or restart a
// service. guardedInstall lays /bin/true over them in a mount namespace that
// only apt sees, so nothing has to be put back, whenever and however it ends; a
// policy-rc.d of the machine's own stays in force and untouched.
var masked = []string{
	"/usr/sbin/invoke-rc.d", "/usr/sbin/update-rc.d",
	"/usr/bin/deb-systemd-invoke", "/usr/bin/deb-systemd-helper",
}

// install adds packages to the machine, without what they merely recommend and
// without starting or enabling any service.
func (a *apt) install(ctx context.Context, packages []string) error {
	if err := a.update(ctx); err != nil {
		return err
	}
	script := `for f in ` + strings.Join(masked, " ") + `; do [ ! -e "$f" ] || mount --bind /bin/true "$f" || exit 90; done; exec apt-get "$@"`
	args := append([]string{"-c", script, "apt-get"}, a.options()...)
	args = append(args, "-qq", "-y", "--no-install-recommends", "install")
	cmd := exec.CommandContext(ctx, "sh", append(args, packages...)...)
	cmd.SysProcAttr = privateMounts()
	// Killed, it would leave packages half-installed; asked, apt lets dpkg finish
	// the one at hand.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	// needrestart, where it is installed, would restart daemons from an apt hook.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "NEEDRESTART_SUSPEND=1")
	_, err := output(cmd)
	return err
}

// download fetches packages, with /suite to choose one, into dir and returns
// the files in name order.
func (a *apt) download(ctx context.Context, dir string, packages ...string) ([]string, error) {
	if err := a.update(ctx); err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, dir, "apt-get", append([]string{"-qq", "download"}, packages...)...); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	if len(debs) < len(packages) {
		return nil, fmt.Errorf("download %s: only %d of %d packages came", strings.Join(packages, " "), len(debs), len(packages))
	}
	return debs, nil
}

// dependsOn is the first package that name depends on with the given prefix:
// a meta package's way to say which version it stands for.
func (a *apt) dependsOn(ctx context.Context, name, prefix string) (string, error) {
	if err := a.update(ctx); err != nil {
		return "", err
	}
	text, err := a.run(ctx, "", "apt-cache", "depends", name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(p, prefix) {
			return p, nil
		}
	}
	return "", fmt.Errorf("package %s depends on no %s…", name, prefix)
}

// installed maps the wanted packages that are installed to their versions.
func installed(ctx context.Context, packages []string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"}, packages...)...)
	// dpkg-query exits 1 when it does not know a package; what it knows is on
	// its output all the same.
	text, err := cmd.Output()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		return nil, fmt.Errorf("read the package database: %w", err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "installed" {
			out[f[1]] = f[2]
		}
	}
	return out, nil
}

// osRelease reads ID and VERSION_CODENAME of /etc/os-release.
func osRelease() (id, codename string, err error) {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		k, v, _ := strings.Cut(s.Text(), "=")
		switch v = strings.Trim(v, `"'`); k {
		case "ID":
			id = v
		case "VERSION_CODENAME":
			codename = v
		}
	}
	return id, codename, nil
}

// output runs cmd and returns what it printed; an error carries the command and
// the end of what it printed on either stream.
func output(cmd *exec.Cmd) (string, error) {
	var out, both tail
	cmd.Stdout = io.MultiWriter(&out, &both)
	cmd.Stderr = &both
	if err := cmd.Run(); err != nil {
		return out.String(), commandError(cmd, err, both.String())
	}
	return out.String(), nil
}

// commandError says which command failed, how, and its last words.
func commandError(cmd *exec.Cmd, err error, text string) error {
	var shown []string
	for i, a := range cmd.Args {
		if a == "-o" || i > 0 && cmd.Args[i-1] == "-o" {
			continue // apt's settings, which say nothing about what failed
		}
		shown = append(shown, a)
	}
	words := strings.Join(shown, " ")
	if len(words) > 240 {
		words = words[:120] + " … " + words[len(words)-110:]
	}
	if text = strings.TrimSpace(text); len(text) > 2000 {
		text = "…" + text[len(text)-2000:]
	}
	return fmt.Errorf("%s: %w: %s", words, err, text)
}
