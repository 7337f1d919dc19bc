package host_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Other ways by which a file goes from one folder to another.

// copied times one of them.
func (x *bench) copied(do func(from, to string) error) time.Duration {
	from, to := filepath.Join(x.dirs["a"], benchDisk), filepath.Join(x.dirs["b"], "copy")
	began := time.Now()
	x.must("copy", do(from, to))
	took := time.Since(began)
	x.must("remove the copy", os.Remove(to))
	return took
}

func (x *bench) cp() time.Duration {
	return x.copied(func(from, to string) error {
		return errors.Join(exec.Command("cp", "--reflink=never", from, to).Run(), exec.Command("sync", to).Run())
	})
}

// scp does not sync; what that would cost is noted apart.
func (x *bench) scp() time.Duration {
	if x.ssh == nil {
		return 0
	}
	var sync time.Duration
	took := x.copied(func(from, to string) error {
		if err := x.ssh(from, to); err != nil {
			return err
		}
		began := time.Now()
		err := exec.Command("sync", to).Run()
		sync = time.Since(began)
		return err
	})
	x.synced += sync
	return took - sync
}

// sshd starts one on the loopback with keys of its own, and gives what copies through it;
// nil where none is installed.
func (x *bench) sshd() func(from, to string) error {
	daemon, err := exec.LookPath("sshd")
	if err != nil {
		daemon, err = exec.LookPath("/usr/sbin/sshd")
	}
	if err == nil {
		_, err = exec.LookPath("scp")
	}
	if err != nil {
		x.Log("no openssh: ", err)
		return nil
	}
	dir := x.TempDir()
	for _, key := range []string{"host", "user"} {
		x.must("make a key", exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).Run())
	}
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	x.must("find a port", err)
	port := ear.Addr().(*net.TCPAddr).Port
	x.must("free it", ear.Close())
	config := fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\nStrictModes no\nUsePAM no\nSubsystem sftp internal-sftp\n", port, dir, dir)
	x.must("write its configuration", os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600))
	x.must("make its folder", os.MkdirAll("/run/sshd", 0o755)) // privilege separation wants it
	var said bytes.Buffer
	server := exec.Command(daemon, "-D", "-e", "-f", filepath.Join(dir, "config"))
	server.Stderr = &said
	x.must("start sshd", server.Start())
	x.daemon = server.Process.Pid
	x.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM) // it may be gone
		_ = server.Wait()                          // ends by the signal
	})
	copy := func(from, to string) error {
		out, err := exec.Command("scp", "-q", "-P", strconv.Itoa(port), "-i", filepath.Join(dir, "user"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
			"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile="+filepath.Join(dir, "known"), "-F", "none", from, "127.0.0.1:"+to).CombinedOutput()
		if err != nil {
			return fmt.Errorf("scp: %w\n%s%s", err, out, &said)
		}
		return nil
	}
	probe := filepath.Join(dir, "probe")
	for try := 0; ; try++ {
		err := copy(filepath.Join(dir, "config"), probe)
		if err == nil {
			return copy
		}
		if try == 50 {
			x.must("reach sshd", err)
		}
		time.Sleep(100 * time.Millisecond) // until it listens
	}
}

// tls sends a file by one connection.
func (x *bench) tls() time.Duration {
	return x.copied(func(from, to string) error {
		id := x.ids["b"]
		ear, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{id.Certificate}, MinVersion: tls.VersionTLS13})
		if err != nil {
			return err
		}
		defer ear.Close()
		ended := make(chan error, 1)
		go func() { ended <- receive(ear, to) }()
		file, err := os.Open(from)
		if err != nil {
			return err
		}
		defer file.Close()
		conn, err := tls.Dial("tcp", ear.Addr().String(), &tls.Config{RootCAs: id.Roots, ServerName: "b"})
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{file}, make([]byte, 1<<20))
		return errors.Join(err, conn.Close(), <-ended)
	})
}

func receive(ear net.Listener, to string) error {
	conn, err := ear.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{conn}, make([]byte, 1<<20))
	return errors.Join(err, file.Sync(), file.Close())
}
