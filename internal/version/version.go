// Package version says which build of Berth this is. It reads what the linker
// and the Go tool left in the binary, and writes nothing.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is the version of a released build, set by the linker
// (-X berth/internal/version.release=1.2.3); empty in a build from a work tree.
var release string

// Info is a build.
type Info struct {
	Version  string `json:"version"`            // "1.2.3", or "devel" for a build from a work tree
	Commit   string `json:"commit,omitempty"`   // of the work tree; empty when the build knew none
	Modified bool   `json:"modified,omitempty"` // the work tree held more than the commit
	Date     string `json:"date,omitempty"`     // of the commit, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"` // linux/amd64
}

// Get reads the build.
func Get() Info {
	i := Info{Version: release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if i.Version == "" {
		i.Version = "devel"
	}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return i
	}
	// A module's version is known where the module was downloaded, as by
	// `go install berth/cmd/berth@v1.2.3`. The Go tool makes one up for a work tree,
	// which says less than the commit does.
	if v := b.Main.Version; release == "" && v != "" && v != "(devel)" && b.Main.Sum != "" {
		i.Version = v
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		case "vcs.time":
			i.Date = s.Value
		}
	}
	return i
}

// String is the short form that hosts tell each other: "1.2.3",
// "devel+0123456789ab", with ".modified" where the work tree held more than the
// commit, or "devel" where nothing is known.
func (i Info) String() string {
	if i.Version != "devel" || i.Commit == "" {
		return i.Version
	}
	text := fmt.Sprintf("%s+%.12s", i.Version, i.Commit)
	if i.Modified {
		text += ".modified"
	}
	return text
}
