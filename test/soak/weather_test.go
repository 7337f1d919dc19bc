package soak

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"berth/test/lab"
)

func TestWeather_LosesAndDelaysPacketsAndNoBytes(t *testing.T) {
	l := lab.Start(t, lab.Options{NoLibvirtd: true})
	a, b := l.Hosts[0], l.Hosts[1]
	echo, err := inNet(b, func() (net.PacketConn, error) { return net.ListenPacket("udp", b.MigIP()+":7000") })
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := echo.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buffer[:n], from) // what is lost is counted
		}
	}()
	sum := make(chan [32]byte, 2)
	sink, err := listenIn(b, b.MigIP()+":7001")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	go func() {
		for {
			c, err := sink.Accept()
			if err != nil {
				return
			}
			h := sha256.New()
			_, _ = io.Copy(h, c) // a short read shows in the sum
			c.Close()
			sum <- [32]byte(h.Sum(nil))
		}
	}()
	// pings sends 200 packets: how many came back, and when the first did.
	pings := func() (back int, first time.Duration) {
		c, err := inNet(a, func() (net.Conn, error) { return net.Dial("udp", b.MigIP()+":7000") })
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := time.Now()
		go func() {
			for i := range 200 {
				_, _ = c.Write([]byte{byte(i)})
				time.Sleep(time.Millisecond)
			}
		}()
		for answer := make([]byte, 1); back < 200; back++ {
			// Those that are lost are waited for no longer than that. A socket always takes it.
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(answer); err != nil {
				break
			}
			if back == 0 {
				first = time.Since(begun)
			}
		}
		return back, first
	}
	transfer := func() {
		c, err := inNet(a, func() (net.Conn, error) { return net.DialTimeout("tcp", b.MigIP()+":7001", time.Minute) })
		if err != nil {
			t.Fatal(err)
		}
		text := bytes.Repeat([]byte("weather "), 1<<19)
		_, err = c.Write(text)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if got := <-sum; err != nil || got != sha256.Sum256(text) {
			t.Errorf("4 MiB did not arrive as they were sent: %v", err)
		}
	}
	if back, _ := pings(); back != 200 {
		t.Fatalf("%d of 200 packets without weather", back)
	}
	s, err := brew(t.Context(), l.Switch, b, lab.Mig, Weather{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.2}, rand.Uint64())
	if err != nil {
		t.Fatal(err)
	}
	// Each way loses a fifth: 128 of 200 come back, give or take 7 (one sigma).
	if back, first := pings(); back < 80 || back > 176 || first < 40*time.Millisecond {
		t.Errorf("in the weather %d of 200 packets came back, the first after %s", back, first)
	}
	if err := s.clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err = brew(t.Context(), l.Switch, b, lab.Mig, Weather{Delay: time.Millisecond, Loss: 0.01}, rand.Uint64()); err != nil {
		t.Fatal(err)
	}
	transfer()
	if err := s.clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if back, _ := pings(); back != 200 {
		t.Errorf("%d of 200 packets after the weather", back)
	}
	transfer()
}
