package stream

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A round of the benchmarks moves this much over each connection.
const benchRound = 256 << 20

// BenchmarkStream is the throughput from a socket of the source's process to one of
// the destination's, both processes of their own, and what CPU time they took.
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(strconv.Itoa(n)+"-connections", func(b *testing.B) {
			p := newPair(b, own(b))
			p.open()
			memory := p.memory()
			var out, in []net.Conn
			for range n {
				o, i := p.connected(memory)
				if err := errors.Join(o.SetDeadline(time.Time{}), i.SetDeadline(time.Time{})); err != nil {
					b.Fatal(err)
				}
				out, in = append(out, o), append(in, i)
			}
			pids := []int{p.status(p.src).PID, p.status(p.dst).PID}
			before := cpuOf(b, pids)
			b.SetBytes(benchRound * int64(n))
			for b.Loop() {
				pump(b, out, in)
			}
			gib := float64(b.N) * benchRound * float64(n) / (1 << 30)
			b.ReportMetric((cpuOf(b, pids)-before).Seconds()/gib, "cpu-s/GiB")
		})
	}
}

// BenchmarkPlainTLS is what crypto/tls alone makes of it, one connection from end to
// end, used as most programs use it: the cost of the same cipher without anybody
// between.
func BenchmarkPlainTLS(b *testing.B) {
	p := newPair(b, inside(b))
	source, err := newCertificates(p.out.PKI)
	if err != nil {
		b.Fatal(err)
	}
	destination, err := newCertificates(p.in.PKI)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 4} {
		b.Run(strconv.Itoa(n)+"-connections", func(b *testing.B) {
			l, err := tls.Listen("tcp", "127.0.0.1:0", destination.server("host-a"))
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			var out, in []net.Conn
			for range n {
				met := make(chan net.Conn)
				go func() {
					c, err := l.Accept()
					if err == nil {
						err = c.(*tls.Conn).Handshake()
					}
					if err != nil {
						b.Error(err)
					}
					met <- c
				}()
				o, err := tls.Dial("tcp", l.Addr().String(), source.client("host-b"))
				if err != nil {
					b.Fatal(err)
				}
				out, in = append(out, o), append(in, <-met)
				defer o.Close()
			}
			before := cpuOf(b, []int{os.Getpid()})
			b.SetBytes(benchRound * int64(n))
			for b.Loop() {
				pump(b, out, in)
			}
			gib := float64(b.N) * benchRound * float64(n) / (1 << 30)
			b.ReportMetric((cpuOf(b, []int{os.Getpid()})-before).Seconds()/gib, "cpu-s/GiB")
		})
	}
}

// pump moves one round over each connection.
func pump(b *testing.B, out, in []net.Conn) {
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			piece := make([]byte, 1<<20)
			for range benchRound / len(piece) {
				if _, err := out[i].Write(piece); err != nil {
					b.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			piece := make([]byte, 1<<20)
			for left := benchRound; left > 0; {
				n, err := in[i].Read(piece[:min(left, len(piece))])
				left -= n
				if err != nil && left > 0 {
					if !errors.Is(err, io.EOF) {
						b.Error(err)
					}
					return
				}
			}
		})
	}
	wg.Wait()
}

// cpuOf is the CPU time that processes have taken (/proc/PID/stat, fields 14 and 15,
// in hundredths of a second on every Linux that Go runs on).
func cpuOf(b *testing.B, pids []int) time.Duration {
	var total time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return total
}
