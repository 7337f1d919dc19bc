package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/lab"
)

// Weather is what befalls the packets of a link, both ways. The kernels here have
// no netem, so packets pass through this program.
type Weather struct {
	Delay, Jitter time.Duration // each packet is late by Delay plus up to Jitter, in its order
	Loss          float64       // share of packets that are lost
}

// storm is a host's link with weather on it: between the switch's end of the link
// and the bridge stands this program.
//
//	host ── p1-mig │ storm │ s1-mig ── t1-mig ── bridge
type storm struct {
	port, near, far, bridge string
	sw                      *lab.Host
	sockets                 []int
	over                    chan struct{} // closed when it clears
	wg                      sync.WaitGroup
}

// brew puts weather on a link of a host until its clear.
func brew(ctx context.Context, sw, h *lab.Host, link lab.Link, w Weather, seed uint64) (*storm, error) {
	s := &storm{
		port: fmt.Sprintf("p%d-%s", h.Index, link), near: fmt.Sprintf("s%d-%s", h.Index, link), far: fmt.Sprintf("t%d-%s", h.Index, link),
		bridge: "br-" + string(link), sw: sw, over: make(chan struct{}),
	}
	steps := [][]string{
		{"link", "add", s.near, "type", "veth", "peer", "name", s.far},
		{"link", "set", s.far, "master", s.bridge, "up"},
		{"link", "set", s.near, "up"},
		{"link", "set", s.port, "nomaster"},
	}
	for _, args := range steps {
		if _, err := sw.Exec(ctx, append([]string{"ip"}, args...)...); err != nil {
			return nil, errors.Join(err, s.clear(ctx))
		}
	}
	for _, name := range []string{s.port, s.near} {
		fd, err := inNet(sw, func() (int, error) { return tap(name) })
		if err != nil {
			return nil, errors.Join(err, s.clear(ctx))
		}
		s.sockets = append(s.sockets, fd)
	}
	s.wg.Go(func() { s.carry(s.sockets[0], s.sockets[1], w, rand.New(rand.NewPCG(seed, 1))) })
	s.wg.Go(func() { s.carry(s.sockets[1], s.sockets[0], w, rand.New(rand.NewPCG(seed, 2))) })
	return s, nil
}

// clear gives the link back to the bridge.
func (s *storm) clear(ctx context.Context) error {
	close(s.over)
	s.wg.Wait()
	var all []error
	for _, fd := range s.sockets {
		all = append(all, unix.Close(fd))
	}
	for _, args := range [][]string{{"link", "set", s.port, "master", s.bridge}, {"link", "del", s.near}} {
		_, err := s.sw.Exec(ctx, append([]string{"ip"}, args...)...)
		all = append(all, err)
	}
	return errors.Join(all...)
}

// headSize is that of struct virtio_net_hdr. With it a packet that the sender has
// left to the network card to split and sum passes as it is.
const headSize = 10

// tap opens a socket that sees what comes in on a link and sends out on it.
func tap(name string) (int, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	proto := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: link.Index}),
	)
	if err != nil {
		_ = unix.Close(fd) // the first error counts
		return -1, fmt.Errorf("listen on link %s: %w", name, err)
	}
	return fd, nil
}

// carry passes packets on until the weather clears.
func (s *storm) carry(from, to int, w Weather, rng *rand.Rand) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, 4096)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			_, _ = unix.Write(to, p.data) // a packet that cannot be sent is lost, as on any link
		}
	})
	defer writer.Wait()
	defer close(queue)
	buffer := make([]byte, 128<<10)
	var last time.Time
	for {
		select {
		case <-s.over:
			return
		default:
		}
		// It ends after a tenth of a second without a packet, and at once with an error
		// while the link is down.
		n, err := unix.Read(from, buffer)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil || n <= headSize || rng.Float64() < w.Loss {
			continue
		}
		due := time.Now().Add(w.Delay)
		if w.Jitter > 0 {
			due = due.Add(time.Duration(rng.Int64N(int64(w.Jitter))))
		}
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case queue <- packet{due, append([]byte(nil), buffer[:n]...)}:
		default: // a router's queue that is full
		}
	}
}
