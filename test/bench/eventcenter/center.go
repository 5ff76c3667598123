package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// center is a running "eventcenter serve".
type center struct {
	cmd    *exec.Cmd
	dir    string
	url    string
	client *http.Client
	log    *os.File
}

// startCenter starts a center on loopback.
func (b *bench) startCenter(dir string, flags ...string) (*center, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c := &center{dir: dir, url: "http://" + address, client: &http.Client{Timeout: time.Minute}, log: log}
	return c, c.start(b.binary, append([]string{"serve", "--dir", dir, "--listen", address}, flags...))
}

func (c *center) start(binary string, args []string) error {
	c.cmd = exec.Command(binary, args...)
	c.cmd.Stderr = c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c.cmd.Start()
}

// again restarts a stopped center at the same address.
func (c *center) again() error { return c.start(c.cmd.Path, c.cmd.Args[1:]) }

func (c *center) stop(signal os.Signal) error {
	if err := c.cmd.Process.Signal(signal); err != nil {
		return err
	}
	err := c.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok && signal == syscall.SIGKILL {
		return nil
	}
	return err
}

// ready waits until the center accepts requests, and returns how long that took.
func (c *center) ready(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	for {
		_, status, err := c.get(ctx, "/readyz")
		if err == nil && status == http.StatusOK {
			return time.Since(begun), nil
		}
		if time.Since(begun) > 10*time.Minute || ctx.Err() != nil {
			text, _ := os.ReadFile(c.log.Name())
			return 0, fmt.Errorf("the center does not start: %d %w\n%s", status, err, text[max(0, len(text)-2000):])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// token is the token that agents and this program use.
func (c *center) token() string { return filepath.Join(c.dir, "token") }

func (c *center) get(ctx context.Context, path string) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, 0, err
	}
	if token, err := os.ReadFile(c.token()); err == nil {
		request.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return body, response.StatusCode, err
}

// timed returns how long responses take, over many requests.
func (c *center) timed(ctx context.Context, times int, path func(i int) string) (figure, error) {
	var took []time.Duration
	for i := range times {
		begun := time.Now()
		body, status, err := c.get(ctx, path(i))
		if err != nil || status != http.StatusOK {
			return figure{}, errors.Join(fmt.Errorf("%s: %d %.200s", path(i), status, body), err)
		}
		took = append(took, time.Since(begun))
	}
	return figureOf(took), nil
}

// usage is a process's resource usage.
type usage struct {
	resident, peak float64 // MiB
	cpu            time.Duration
}

func (c *center) usage() (u usage, err error) {
	return processUsage(c.cmd.Process.Pid)
}

func processUsage(pid int) (u usage, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			u.resident = kib / 1024
		case "VmHWM:":
			u.peak = kib / 1024
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	return u, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// figure summarizes many durations.
type figure struct {
	n                 int
	p50, p99, longest time.Duration
}

func figureOf(times []time.Duration) figure {
	if len(times) == 0 {
		return figure{}
	}
	slices.Sort(times)
	return figure{len(times), times[len(times)/2], times[len(times)*99/100], times[len(times)-1]}
}

func (f figure) String() string { return fmt.Sprintf("%s / %s", short(f.p50), short(f.p99)) }

func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// directorySize returns the size of the files below a folder in bytes.
func directorySize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil // a file deleted in the meantime has no size
	})
	return n
}
