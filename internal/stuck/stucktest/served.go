package stucktest

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Serve mounts a FUSE file system that answers, with one empty plain file of that name: storage that
// the kernel knows nothing of but that a program serves it (sshfs, GlusterFS, ceph-fuse). It skips
// the test where mounting is not allowed.
func Serve(t testing.TB, file string) (dir string) {
	t.Helper()
	dir, fd, end := mount(t)
	over := make(chan struct{})
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		<-over
	})
	go func() {
		defer close(over)
		in := make([]byte, 1<<20)
		for {
			n, err := unix.Read(fd, in)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
				continue // a request that was taken back
			}
			if err != nil || n < requestHeader {
				end()
				return // unmounted
			}
			if answer := answerTo(in[:n], file); answer != nil {
				_, _ = unix.Write(fd, answer) // a request that was taken back has no reader
			}
		}
	}()
	return dir
}

// Of linux/fuse.h, protocol 7.31.
const (
	requestHeader = 40
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opStatfs      = 17
	opInit        = 26
	opDestroy     = 38
	opBatchForget = 42
	rootNode      = 1
	fileNode      = 2
)

func answerTo(in []byte, file string) []byte {
	le := binary.LittleEndian
	node := le.Uint64(in[16:])
	attr := func(node uint64) []byte {
		mode := uint32(unix.S_IFDIR | 0o755)
		if node == fileNode {
			mode = unix.S_IFREG | 0o644
		}
		a := make([]byte, 88) // struct fuse_attr
		le.PutUint64(a, node)
		le.PutUint32(a[60:], mode)
		le.PutUint32(a[64:], 1) // links
		le.PutUint32(a[80:], 4096)
		return a
	}
	fail, body := unix.Errno(0), []byte{}
	switch le.Uint32(in[4:]) {
	case opInit:
		body = make([]byte, 64)
		le.PutUint32(body, 7)
		le.PutUint32(body[4:], 31)
		le.PutUint32(body[20:], 4096) // max_write
	case opGetattr:
		body = append(make([]byte, 16), attr(node)...)
	case opLookup:
		if node != rootNode || string(in[requestHeader:len(in)-1]) != file {
			fail = unix.ENOENT
			break
		}
		body = append(make([]byte, 40), attr(fileNode)...)
		le.PutUint64(body, fileNode)
	case opStatfs:
		body = make([]byte, 80)
		le.PutUint32(body[40:], 4096) // block size
	case opForget, opBatchForget, opDestroy:
		return nil
	default:
		fail = unix.ENOSYS
	}
	out := make([]byte, 16, 16+len(body))
	le.PutUint32(out, uint32(16+len(body)))
	le.PutUint32(out[4:], uint32(-int32(fail)))
	copy(out[8:16], in[8:16])
	return append(out, body...)
}
