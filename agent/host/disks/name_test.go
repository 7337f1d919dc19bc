package disks_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
)

func TestParseName_EverySpelling(t *testing.T) {
	file := func(path string) disks.Name { return disks.Name{Files: []string{path}, Plain: true, Known: true} }
	as := func(n disks.Name, format string) disks.Name { n.Format = format; return n }
	climbing := func(n disks.Name) disks.Name { n.Climbs = true; return n }
	for name, want := range map[string]disks.Name{
		"/t/base.qcow2":          file("/t/base.qcow2"),
		"base.qcow2":             file("/d/base.qcow2"),
		"../t/base.qcow2":        file("/t/base.qcow2"),
		"./a:b":                  file("/d/a:b"),
		"sub/a:b":                file("/d/sub/a:b"),
		"file:/t/base.qcow2":     file("/t/base.qcow2"),
		"file:///t/base.qcow2":   file("/t/base.qcow2"),
		"file:base.qcow2":        {Files: []string{"/base.qcow2", "/d/base.qcow2"}, Known: true},
		"host_device:/dev/vg/lv": file("/dev/vg/lv"),
		"nbd://10.0.0.1/x":       {Known: true},
		"nbd+unix:///x?socket=s": {Known: true, Header: true},
		"nbd:unix:/run/x":        {Known: true, Header: true},
		"/t/../base.qcow2":       climbing(file("/base.qcow2")),
		"file:/t/../base.qcow2":  climbing(file("/base.qcow2")),
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"/t/\u002e./b"}}`: climbing(as(file("/b"), "qcow2")),
		`json:{"driver":"raw","file":{"driver":"rbd","pool":"p","image":"i"}}`:       {Known: true},
		`json:{"file":{"driver":"rbd","pool":"p","image":"i"}}`:                      {Known: true, Header: true},
		"rbd:pool/image":    {Known: true},
		"blkdebug:cfg:/t/x": {},
		"fat:/t":            {},
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"/t/b"}}`:                                                 as(file("/t/b"), "qcow2"),
		`json:{"driver":"qcow2","file.driver":"file","file.filename":"/t/b"}`:                                                as(file("/t/b"), "qcow2"),
		`json:{"file.filename":"/t/b"}`:                                                                                      file("/t/b"),
		`json:{"driver":"file","filename":"/t/b"}`:                                                                           as(file("/t/b"), "raw"),
		`json:{"driver":"host_device","filename":"/dev/x"}`:                                                                  as(file("/dev/x"), "raw"),
		`json:{"driver":"qcow2","file":{"filename":"file:/t/b"}}`:                                                            as(file("/t/b"), "qcow2"),
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"b"}}`:                                                    {Files: []string{"/b", "/d/b"}, Known: true, Header: true},
		`json:{"driver":"raw","offset":"512","file":{"driver":"file","filename":"/t/b"}}`:                                    {Files: []string{"/t/b"}, Known: true},
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"/t/b"},"backing":{"driver":"file","filename":"/t/c"}}`:   {Files: []string{"/t/b", "/t/c"}, Known: true, Header: true},
		`json:{"driver":"quorum","children":[{"driver":"file","filename":"/t/b"},{"driver":"file","filename":"/t/c"}]}`:      {Files: []string{"/t/b", "/t/c"}, Header: true},
		`json:{"driver":"qcow2","file":{"driver":"nbd","server":{"type":"inet","host":"h","port":"1"}}}`:                     {Known: true, Header: true},
		`json:{"driver":"qcow2","data-file":{"driver":"file","filename":"/t/d"},"file":{"driver":"file","filename":"/t/b"}}`: {Files: []string{"/t/b", "/t/d"}, Known: true, Header: true},
		`json:{"driver":`: {},
		"json:":           {},
	} {
		if diff := cmp.Diff(want, disks.ParseName("/d/overlay.qcow2", name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestImage_FollowsNamesThatAreNoPaths: qemu-img writes them as it is told, and QEMU and libvirt open them.
func TestImage_FollowsNamesThatAreNoPaths(t *testing.T) {
	requireQemuImg(t)
	f := disks.Files{}
	dir := t.TempDir()
	path := func(name string) string { return dir + "/" + name }
	qemuImg(t, "create", "-q", "-f", "raw", path("bottom.raw"), "1M")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", path("bottom.raw"), path("base.qcow2"))
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+path("data.raw"), path("apart.qcow2"), "1M")
	for name, c := range map[string]struct {
		backing       string
		want, outside []string
	}{
		"json":      {`json:{"driver":"qcow2","file":{"driver":"file","filename":"` + path("base.qcow2") + `"}}`, []string{path("base.qcow2"), path("bottom.raw")}, nil},
		"file":      {"file:" + path("base.qcow2"), []string{path("base.qcow2"), path("bottom.raw")}, nil},
		"relative":  {"base.qcow2", []string{path("base.qcow2"), path("bottom.raw")}, nil},
		"data file": {path("apart.qcow2"), []string{path("apart.qcow2")}, []string{path("data.raw")}},
	} {
		top := path("top.qcow2")
		qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", c.backing, top, "1M")
		img, err := f.Image(t.Context(), top, "qcow2")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, img.Backing); diff != "" {
			t.Errorf("%s: backing files (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.outside, img.Outside); diff != "" {
			t.Errorf("%s: files outside (-want +got):\n%s", name, diff)
		}
	}
}

// TestOpeners_SeesWhoeverReads: unlike Writers; not this process.
func TestOpeners_SeesWhoeverReads(t *testing.T) {
	f := files(t)
	put(t, f, "/images/base", "template")
	put(t, f, "/images/free", "x")
	mine, err := os.Open(f.Real("/images/free"))
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	held, err := os.Open(f.Real("/images/base"))
	if err != nil {
		t.Fatal(err)
	}
	reader := exec.Command("sleep", "600")
	reader.Stdin = held
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = reader.Process.Kill(), reader.Wait() }()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got, err := f.Openers("/images/free", "/images/base", "/images/gone")
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 1 && got[0].Path == "/images/base" && got[0].PID == reader.Process.Pid && got[0].Name == "sleep" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("openers %+v, want sleep's of /images/base", got)
		}
	}
}
