package disks_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// TestBuildFrom_TakesOnlyWholeImages: what a header names is never read into a disk.
func TestBuildFrom_TakesOnlyWholeImages(t *testing.T) {
	requireQemuImg(t)
	f := disks.Files{}
	dir := t.TempDir()
	path := func(name string) string { return dir + "/" + name }
	if err := os.WriteFile(path("secret"), []byte(strings.Repeat("root's own\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", path("good.qcow2"), "1M")
	qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", path("secret"), path("backed.qcow2"), "1M")
	qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", `json:{"driver":"raw","file":{"driver":"file","filename":"`+path("secret")+`"}}`, path("json.qcow2"), "1M")
	qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "nbd://127.0.0.1/x", path("network.qcow2"), "1M")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+path("data"), path("apart.qcow2"), "1M")
	qemuImg(t, "create", "-q", "-f", "vmdk", path("x.vmdk"), "1M")
	for _, c := range []struct{ image, format, code string }{
		{"good.qcow2", "qcow2", ""}, {"secret", "raw", ""},
		{"backed.qcow2", "qcow2", "image_not_whole"}, {"json.qcow2", "qcow2", "image_not_whole"}, {"network.qcow2", "qcow2", "image_not_whole"},
		{"apart.qcow2", "qcow2", "image_not_whole"}, {"good.qcow2", "raw", "image_format"}, {"x.vmdk", "raw", "image_format"},
	} {
		m, err := f.Plan("m", c.image+c.format, path("disk-"+c.image+c.format))
		if err != nil {
			t.Fatal(err)
		}
		err = f.BuildFrom(t.Context(), &m, "qcow2", 8<<20, path(c.image), c.format)
		if c.code != "" {
			if r := fault.ReasonsOf(err); !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != c.code || r[0].Change == "" {
				t.Errorf("%s as %s: %v, want %s", c.image, c.format, err, c.code)
			}
			if _, err := os.Stat(m.Part); err == nil {
				t.Errorf("%s as %s: a file was made", c.image, c.format)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s as %s: %v", c.image, c.format, err)
			continue
		}
		img, err := f.Image(t.Context(), m.Part, "qcow2")
		if diff := cmp.Diff([]any{int64(8 << 20), 0}, []any{img.VirtualSize, len(img.Backing)}); diff != "" || err != nil {
			t.Errorf("%s as %s: %v (-want +got):\n%s", c.image, c.format, err, diff)
		}
	}
}

func TestWhole_RefusesWhatIsEncrypted(t *testing.T) {
	err := disks.Whole("/x.qcow2", "qcow2", disks.Image{Encrypted: true})
	if r := fault.ReasonsOf(err); len(r) != 1 || r[0].Code != "image_encrypted" {
		t.Errorf("%v", err)
	}
}

// TestBuildFrom_AnImageThatChangesAfterTheLook is copied without what its header names then.
func TestBuildFrom_AnImageThatChangesAfterTheLook(t *testing.T) {
	requireQemuImg(t)
	dir := t.TempDir()
	secret, image := dir+"/secret", dir+"/image.qcow2"
	if err := os.WriteFile(secret, []byte(strings.Repeat("root's own\n", 100000)), 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", image, "1M")
	// The tool itself changes it between the look and the copy.
	tool := dir + "/tool"
	script := "#!/bin/sh\ncase $1 in convert) qemu-img create -q -u -f qcow2 -F raw -b " + secret + " " + image + " 1M;; esac\nexec qemu-img \"$@\"\n"
	if err := os.WriteFile(tool, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	f := disks.Files{Tool: tool}
	m, err := f.Plan("m", "p", dir+"/disk.raw")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.BuildFrom(t.Context(), &m, "raw", 0, image, "qcow2"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(m.Part)
	if err != nil || len(got) != 1<<20 || strings.Trim(string(got), "\x00") != "" {
		t.Errorf("the disk has %d bytes of the host's file, %v", len(strings.Trim(string(got), "\x00")), err)
	}
}
