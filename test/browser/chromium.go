package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// patience bounds one thing that a browser is asked for. Arbitrary, and far above what it takes.
const patience = 60 * time.Second

// Browser is a Chromium without a window, spoken to in the DevTools protocol over a pair of
// pipes (--remote-debugging-pipe): JSON texts, each ended by a zero byte.
type Browser struct {
	cmd  *exec.Cmd
	to   *os.File
	done chan struct{} // closed when it says no more

	// mu guards what follows; nothing is called under it but the write of one command.
	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	pages   map[string]*Page // by session
}

// message is a command, its answer, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts a browser that keeps what it keeps in dir. Close ends it.
func Start(dir string) (*Browser, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("start a browser: %w: go run ./test/lab/cmd/lab install -browser", err)
	}
	commands, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, answers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, commands.Close(), to.Close())
	}
	// Its own sandbox wants user namespaces and another user than root; what it is shown here
	// is ours.
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-GB",
		"--remote-debugging-pipe", "--user-data-dir="+dir, "about:blank")
	cmd.ExtraFiles = []*os.File{commands, answers} // 3 and 4, as it wants them
	cmd.Env = append(os.Environ(), "HOME="+dir, "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	err = errors.Join(err, commands.Close(), answers.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a browser: %w", err), to.Close(), from.Close())
	}
	b := &Browser{cmd: cmd, to: to, done: make(chan struct{}), waiting: map[int]chan message{}, pages: map[string]*Page{}}
	go b.hear(from)
	return b, nil
}

// Close ends the browser and everything that it has started.
func (b *Browser) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = b.call(ctx, "", "Browser.close", nil, nil) // else it is killed
	err := b.to.Close()
	ended := make(chan error, 1)
	go func() { ended <- b.cmd.Wait() }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) // its group: those that it left behind
	<-b.done
	return err
}

// hear gives answers and events to those that they are for, until there are no more.
func (b *Browser) hear(from *os.File) {
	defer close(b.done)
	defer from.Close()
	for r := bufio.NewReaderSize(from, 1<<20); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue // none of ours
		}
		b.mu.Lock()
		answer, page := b.waiting[m.ID], b.pages[m.Session]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case answer != nil:
			answer <- m
		case page != nil && m.Method != "":
			page.note(m)
		}
	}
}

// call gives a command and waits for its answer.
func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	if params == nil {
		params = struct{}{}
	}
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	m := message{ID: b.last, Session: session, Method: method, Params: text}
	b.waiting[m.ID] = answer
	line, err := json.Marshal(m)
	if err == nil {
		_, err = b.to.Write(append(line, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m = <-answer:
	case <-b.done:
		return fmt.Errorf("%s: the browser has gone", method)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
	if m.Error != nil {
		return fmt.Errorf("%s: %s", method, m.Error.Message)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(m.Result, result)
}

// Page is one tab.
type Page struct {
	b       *Browser
	session string

	mu         sync.Mutex
	complaints []string
}

// Open opens a tab at an address, of so many pixels.
func (b *Browser) Open(ctx context.Context, address string, width, height int) (*Page, error) {
	var target struct {
		ID string `json:"targetId"`
	}
	if err := b.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	var attached struct {
		Session string `json:"sessionId"`
	}
	if err := b.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	p := &Page{b: b, session: attached.Session}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page.enable", "Runtime.enable", "Log.enable"} {
		if err := p.call(ctx, domain, nil, nil); err != nil {
			return nil, err
		}
	}
	if err := p.Resize(ctx, width, height); err != nil {
		return nil, err
	}
	return p, p.Go(ctx, address)
}

func (p *Page) call(ctx context.Context, method string, params, result any) error {
	return p.b.call(ctx, p.session, method, params, result)
}

// Go opens an address in the tab and waits until it is there.
func (p *Page) Go(ctx context.Context, address string) error {
	var at struct {
		Error string `json:"errorText"`
	}
	if err := p.call(ctx, "Page.navigate", map[string]any{"url": address}, &at); err != nil || at.Error != "" {
		return errors.Join(err, fmt.Errorf("open %s: %s", address, at.Error))
	}
	return p.Await(ctx, `document.readyState === "complete"`)
}

// Resize gives the tab a screen.
func (p *Page) Resize(ctx context.Context, width, height int) error {
	return p.call(ctx, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Prefer has the reader prefer light or dark.
func (p *Page) Prefer(ctx context.Context, scheme string) error {
	return p.call(ctx, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Point puts the mouse there.
func (p *Page) Point(ctx context.Context, x, y float64) error {
	return p.call(ctx, "Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": x, "y": y}, nil)
}

// Eval runs a line of JavaScript and decodes what it gives.
func (p *Page) Eval(ctx context.Context, script string, out any) error {
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.call(ctx, "Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &got)
	switch {
	case err != nil:
		return err
	case got.Exception != nil:
		return fmt.Errorf("%.80s: %s %s", script, got.Exception.Text, got.Exception.Exception.Description)
	case out == nil:
		return nil
	}
	return json.Unmarshal(got.Result.Value, out)
}

// Await asks a question again and again until it is true.
func (p *Page) Await(ctx context.Context, question string) error {
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var yes bool
		if err = p.Eval(ctx, "!!("+question+")", &yes); err == nil && yes {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(fmt.Errorf("%s: not within %s", question, patience), err)
}

// Picture is the whole page as a PNG.
func (p *Page) Picture(ctx context.Context) ([]byte, error) {
	var metrics struct {
		Content struct {
			Width, Height float64
		} `json:"cssContentSize"`
	}
	if err := p.call(ctx, "Page.getLayoutMetrics", nil, &metrics); err != nil {
		return nil, err
	}
	var shot struct {
		Data []byte `json:"data"`
	}
	err := p.call(ctx, "Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": metrics.Content.Width, "height": metrics.Content.Height, "scale": 1},
	}, &shot)
	return shot.Data, err
}

// note keeps what the page or the browser complains about.
func (p *Page) note(m message) {
	var text string
	switch m.Method {
	case "Runtime.exceptionThrown":
		text = string(m.Params)
	case "Log.entryAdded":
		var e struct {
			Entry struct{ Level, Source, Text, URL string } `json:"entry"`
		}
		if json.Unmarshal(m.Params, &e) == nil && e.Entry.Level != "verbose" && e.Entry.Level != "info" {
			text = e.Entry.Level + " of " + e.Entry.Source + ": " + e.Entry.Text + " " + e.Entry.URL
		}
	case "Runtime.consoleAPICalled":
		text = string(m.Params)
	}
	if text == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = append(p.complaints, text)
}

// Complaints gives what was complained about since it was asked last.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.complaints
	p.complaints = nil
	return out
}
