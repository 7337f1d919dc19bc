// Command build makes what is released: the deb, the rpm and the list of what the
// binary is made of (SBOM), all from one commit.
//
//	go run ./packaging/build -out build/packages
//
// It reads the checkout, the Go tool and the module cache, and writes the folder of
// -out alone. The same commit and the same version of Go give the same bytes, on every
// machine and in every folder: times are the commit's (or SOURCE_DATE_EPOCH's), owners,
// modes and order are this program's and not the file system's, and nfpm, of the version
// that tools/go.mod pins, packs them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// release is what is packed.
type release struct {
	root    string // of the checkout
	out     string // where the packages go
	work    string // a folder of its own, gone at the end
	version string
	says    string // the version that the binary tells; empty for a build of a commit
	arch    string
	native  bool // with libvirt's C library
	packers []string
	vendor  string // name and address of who answers for the packages
	time    time.Time
	binary  string // the program that is packed
	runs    string // the same program for this machine, which writes its own manual
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "build packages:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	r := release{}
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.StringVar(&r.out, "out", "build/packages", "`folder` for the packages")
	flags.StringVar(&r.version, "version", "", "the release's `version`, as 1.2.3 or 1.2.3~rc1 (default: made from the commit, and below every release)")
	flags.StringVar(&r.arch, "arch", "amd64", "amd64 or arm64")
	flags.StringVar(&r.vendor, "maintainer", "The Berth authors <berth@users.noreply.berth.example>", "`name and address` of who answers for the packages")
	flags.StringVar(&r.binary, "binary", "", "`file` to pack instead of building one; it must run on this machine")
	flags.BoolVar(&r.native, "native", false, "with libvirt's C library, by cgo, for this machine's architecture; the version gets +native")
	packers := flags.String("only", "deb,rpm", "which packages, with commas between them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: no arguments are taken", flags.Args())
	}
	r.packers, r.says = strings.Split(*packers, ","), r.version
	if r.arch != "amd64" && r.arch != "arm64" {
		return fmt.Errorf("architecture %q: want amd64 or arm64", r.arch)
	}
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	r.root = root
	if err := r.date(ctx); err != nil {
		return err
	}
	if r.native {
		r.version += "+native"
	}
	if r.work, err = os.MkdirTemp("", "berth-packages-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	return r.make(ctx)
}

func (r *release) make(ctx context.Context) error {
	if err := r.build(ctx); err != nil {
		return err
	}
	parts, err := r.parts(ctx)
	if err != nil {
		return err
	}
	sbom, err := r.sbom(parts)
	if err != nil {
		return err
	}
	path := filepath.Join(r.out, "berth_"+r.version+"_"+r.arch+".cdx.json")
	if err := os.WriteFile(path, sbom, 0o644); err != nil {
		return err
	}
	fmt.Println(path)
	contents, err := r.contents(ctx, parts, sbom)
	if err != nil {
		return err
	}
	for _, packer := range r.packers {
		path, err := r.pack(ctx, packer, contents)
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		fmt.Printf("%s\t%.1f MiB\n", path, float64(info.Size())/(1<<20))
	}
	return nil
}

// date takes the commit's time, and from it a version where none was said: of two
// commits the later one has the higher version, and any release a higher one still.
func (r *release) date(ctx context.Context) error {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = output(ctx, r.root, "git", "log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("when was this written? set SOURCE_DATE_EPOCH, or build in a clone: %w", err)
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	if r.version == "" {
		r.version = "0~git" + r.time.Format("20060102.150405")
	}
	return nil
}

// build makes the binary as `make build` does, without the tables for debuggers; for
// another architecture also one that runs here. One with libvirt's C library is linked
// with what lies here, and therefore for here.
func (r *release) build(ctx context.Context) error {
	if r.binary != "" {
		r.runs = r.binary
		return nil
	}
	here, err := output(ctx, r.root, "go", "env", "GOHOSTARCH")
	if err != nil {
		return err
	}
	if r.native && here != r.arch {
		return fmt.Errorf("-native for %s: build it on a machine of that architecture, this one is %s", r.arch, here)
	}
	cgo, tags := "CGO_ENABLED=0", ""
	if r.native {
		cgo, tags = "CGO_ENABLED=1", "native"
	}
	one := func(arch, path string) error {
		link := "-s -w"
		if r.says != "" {
			link += " -X berth/internal/version.release=" + r.says
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", tags, "-ldflags", link, "-o", path, "./cmd/berth")
		cmd.Dir, cmd.Env = r.root, append(os.Environ(), cgo, "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOFLAGS=")
		_, err := said(cmd)
		return err
	}
	r.binary = filepath.Join(r.work, "berth")
	if err := one(r.arch, r.binary); err != nil {
		return err
	}
	if r.runs = r.binary; here != r.arch {
		r.runs = filepath.Join(r.work, "berth-here")
		return one(here, r.runs)
	}
	return nil
}

// output runs a program in dir and gives what it printed, trimmed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return said(cmd)
}

func said(cmd *exec.Cmd) (string, error) {
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		// nfpm says what is wrong on standard output.
		return "", fmt.Errorf("%s: %w: %s%.2000s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()), out)
	}
	return strings.TrimSpace(string(out)), nil
}
