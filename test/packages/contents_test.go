package packages

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/test/docs"
)

// unpacked is the older deb's files.
func unpacked(t *testing.T) string {
	t.Helper()
	packages(t)
	return filepath.Join(filepath.Dir(older.dir), "tree")
}

// TestPages_LeadSomewhereWhereTheyLie follows, in what each package holds, the links of its pages
// and those of its alerts to their runbooks.
func TestPages_LeadSomewhereWhereTheyLie(t *testing.T) {
	deb := unpacked(t)
	rpm := t.TempDir()
	command(t, "sh", "-ec", `rpm2archive -n - <"$1" | tar -x -C "$2"`, "sh", older.rpm(), rpm)
	runbook := regexp.MustCompile(`file://(/\S+)`)
	for packer, tree := range map[string]string{"deb": deb, "rpm": rpm} {
		pages, err := docs.Read(tree, "usr/share/doc/berth")
		if err != nil {
			t.Fatal(err)
		}
		rules, err := os.ReadFile(filepath.Join(tree, "usr/share/berth/prometheus/berth.rules.yml"))
		if err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(tree, "usr/share/berth/grafana/berth.json")); err != nil {
			t.Error(err)
		}
		links := 0
		follow := func(page, target string) {
			links++
			if _, err := os.Stat(filepath.Join(tree, target)); err != nil {
				t.Errorf("%s: %s leads to %s, which is not in the package", packer, page, target)
			}
		}
		for _, p := range pages {
			for _, l := range p.Links() {
				follow(l.Page, l.Target)
			}
		}
		alerts := runbook.FindAllSubmatch(rules, -1)
		for _, m := range alerts {
			follow("an alert", string(m[1]))
		}
		if len(pages) < 50 || len(alerts) < 15 || links < 200 {
			t.Errorf("%s: only %d pages, %d alerts, %d links", packer, len(pages), len(alerts), links)
		}
	}
}

func TestManual_IsSetWithoutAComplaint(t *testing.T) {
	tree := unpacked(t)
	pages, err := filepath.Glob(filepath.Join(tree, "usr/share/man/man?/*.gz"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		// What man(1) finds wrong it says, and ends well all the same.
		if out := command(t, "sh", "-c", `LC_ALL=C.UTF-8 MANROFFSEQ= MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 -Z "$1" 2>&1 >/dev/null`, "sh", page); out != "" {
			t.Errorf("%s: %s", filepath.Base(page), out)
		}
	}
	text := command(t, "sh", "-c", `LC_ALL=C.UTF-8 MANWIDTH=100 MAN_KEEP_FORMATTING= man -l "$1" | col -bx`, "sh", filepath.Join(tree, "usr/share/man/man1/berth-migrate.1.gz"))
	for _, want := range []string{"berth-migrate - ", "berth migrate INSTANCE [HOST]", "--max-downtime", "SEE ALSO"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of berth migrate does not say %q:\n%s", want, text)
		}
	}
}

func TestCompletions_AreReadByTheirShells(t *testing.T) {
	tree := unpacked(t)
	berth := filepath.Join(tree, "usr/bin")
	for _, c := range []struct{ shell, file, script string }{
		{"bash", "usr/share/bash-completion/completions/berth", `. /usr/share/bash-completion/bash_completion && . "$1" && COMP_WORDS=(berth migr) COMP_CWORD=1 COMP_LINE="berth migr" COMP_POINT=10 COMP_TYPE=9 && __start_berth && printf '%s\n' "${COMPREPLY[@]}"`},
		{"zsh", "usr/share/zsh/vendor-completions/_berth", `autoload -Uz compinit && compinit -D -u && . "$1" && (( $+functions[_berth] )) && berth __complete migr`},
		{"fish", "usr/share/fish/vendor_completions.d/berth.fish", `source $argv[1]; and complete --do-complete "berth migr"`},
	} {
		args := []string{"HOME=" + t.TempDir(), "PATH=" + berth + ":/usr/bin:/bin", "LC_ALL=C.UTF-8", c.shell}
		switch c.shell {
		case "bash":
			args = append(args, "--norc", "-c", c.script, "bash")
		case "zsh":
			args = append(args, "-f", "-c", c.script, "zsh")
		case "fish":
			args = append(args, "--no-config", "-c", c.script)
		}
		out := command(t, "env", append(append([]string{"-i"}, args...), filepath.Join(tree, c.file))...)
		if !strings.Contains(out, "migrate") || !strings.Contains(out, "migration") {
			t.Errorf("%s offers %q for `berth migr`, want migrate and migration", c.shell, out)
		}
	}
}

func TestSBOM_NamesWhatTheBinaryIsMadeOf(t *testing.T) {
	tree := unpacked(t)
	text, err := os.ReadFile(older.sbom())
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.ReadFile(filepath.Join(tree, "usr/share/doc/berth/berth.cdx.json"))
	if err != nil || string(inside) != string(text) {
		t.Errorf("the package has another SBOM than the one beside it: %v", err)
	}
	var doc struct {
		BomFormat, SpecVersion, SerialNumber string
		Components                           []struct {
			PURL     string `json:"purl"`
			Ref      string `json:"bom-ref"`
			Licenses []struct{ License struct{ ID string } }
		}
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(filepath.Join(tree, "usr/bin/berth"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	var got, refs []string
	for _, c := range doc.Components {
		got, refs = append(got, c.PURL), append(refs, c.Ref)
		if len(c.Licenses) != 1 || c.Licenses[0].License.ID == "" {
			t.Errorf("%s has no licence", c.PURL)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || doc.BomFormat != "CycloneDX" || doc.SpecVersion != "1.6" || !strings.HasPrefix(doc.SerialNumber, "urn:uuid:") {
		t.Errorf("the SBOM (%s %s, %s) names\n%s\nwant\n%s", doc.BomFormat, doc.SpecVersion, doc.SerialNumber, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	edges := 0
	for _, d := range doc.Dependencies[1:] {
		edges += len(d.DependsOn)
		for _, ref := range append(d.DependsOn, d.Ref) {
			if !slices.Contains(refs, ref) {
				t.Errorf("%s is needed, and no component", ref)
			}
		}
	}
	if edges < 5 {
		t.Errorf("%d parts of the SBOM need another", edges)
	}
}
