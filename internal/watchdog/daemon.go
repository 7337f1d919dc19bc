package watchdog

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/internal/fault"
)

// A daemon listens on a unix socket and has one holder at a time. Both say lines; each of the
// holder's is answered before the next.
//
//	holder        daemon
//	arm 10        armed 10 NAME     it resets this host 10 s after the last arm or feed
//	              busy              another connection holds it
//	              refused WORDS     it does not take that
//	feed          fed
//	disarm        disarmed          it resets nothing any more
//
// A connection that ends without disarm ends nothing: the countdown goes on until it is armed
// again. The daemon counts from when it reads a line.
//
// The time that a line takes on its way is bounded as a late keep-alive is: by the watchdog
// (Budget.Margin).

// daemonPatience bounds each answer. Arbitrary: a local process that takes longer is not
// there, and the feeder must not hang on it.
const daemonPatience = time.Second

// daemon is a connection to one.
type daemon struct {
	conn net.Conn
	in   *bufio.Reader
}

func openDaemon(path string, timeout time.Duration, armed bool) (*Device, error) {
	conn, err := net.DialTimeout("unix", path, daemonPatience)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fault.Refuse(fault.NotFound, "", fault.Reason{
			Code: "watchdog_absent", Message: "nobody listens on " + path, Change: "start the daemon that resets this host, or correct [fleet] self_fence",
		})
	case err != nil:
		return nil, fault.New(fault.Unavailable, "%w", err)
	}
	d := daemon{conn: conn, in: bufio.NewReader(conn)}
	out, err := d.arm(path, timeout, armed)
	if err != nil {
		_ = conn.Close() // nothing was written since the answer
		return nil, err
	}
	return out, nil
}

func (d daemon) arm(path string, timeout time.Duration, armed bool) (*Device, error) {
	answer, err := d.ask(fmt.Sprintf("arm %d", timeout/time.Second))
	if err != nil {
		return nil, err
	}
	word, rest, _ := strings.Cut(answer, " ")
	switch word {
	case "armed":
	case "busy":
		return nil, inUse(path)
	default:
		return nil, fault.Refuse(fault.Invalid, "", noWatchdog(path, fmt.Sprintf("its daemon answered %q", answer)))
	}
	took, name, _ := strings.Cut(rest, " ")
	seconds, err := strconv.Atoi(took)
	if err != nil || seconds < 1 || time.Duration(seconds)*time.Second > timeout {
		err := fault.Refuse(fault.Invalid, "", fault.Reason{
			Code: "watchdog_timeout", Message: fmt.Sprintf("its daemon does not take %s: it answered %q", timeout, answer), Want: timeout.String(), Have: took,
			Change: "set [fleet] self_fence_timeout to one that it takes, and a lease that goes with it",
		})
		if !armed {
			err = errors.Join(err, d.want("disarm", "disarmed"))
		}
		return nil, err
	}
	return &Device{Facts: Facts{Path: path, Identity: name, Timeout: time.Duration(seconds) * time.Second}, line: d}, nil
}

// ask says a line and gives the answer to it.
func (d daemon) ask(line string) (string, error) {
	if err := d.conn.SetDeadline(time.Now().Add(daemonPatience)); err != nil {
		return "", err
	}
	if _, err := d.conn.Write([]byte(line + "\n")); err != nil {
		return "", fault.New(fault.Unavailable, "say %q: %w", line, err)
	}
	answer, err := d.in.ReadString('\n')
	if err != nil {
		return "", fault.New(fault.Unavailable, "hear the answer to %q: %w", line, err)
	}
	return strings.TrimSuffix(answer, "\n"), nil
}

func (d daemon) want(line, answer string) error {
	got, err := d.ask(line)
	if err == nil && got != answer {
		err = fault.New(fault.Unavailable, "it answered %q to %q", got, line)
	}
	return err
}

func (d daemon) feed() error { return d.want("feed", "fed") }

func (d daemon) disarm() error { return errors.Join(d.want("disarm", "disarmed"), d.conn.Close()) }

func (d daemon) abandon() error { return d.conn.Close() }
