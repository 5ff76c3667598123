package main

import (
	"bytes"
	"context"
	"database/sql"
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
	token  string
}

// startCenter starts a center on loopback.
func (b *bench) startCenter(dir string, flags ...string) (*center, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := free.Addr().String()
	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err := errors.Join(err, free.Close()); err != nil {
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

// settled waits until the reports have counted the history, and the files of past days are sealed. A history that is
// made at once takes a while.
func (c *center) settled(ctx context.Context) error {
	for begun := time.Now(); ; time.Sleep(time.Second) {
		_, err := c.timed(ctx, 1, func(int) string { return "/v1/reports/daily?date=today" })
		logs, globErr := filepath.Glob(filepath.Join(c.dir, "journal", "*-wal"))
		if err == nil && len(logs) < 2 || globErr != nil {
			return globErr
		}
		if time.Since(begun) > 10*time.Minute || ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%d files of the journal are not sealed: %w", len(logs), err))
		}
	}
}

// sqliteAlone measures durable commits of one row of 1 KiB in a file.
func sqliteAlone(ctx context.Context, name string) (figure, error) {
	db, err := sql.Open("sqlite", "file:"+name+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return figure{}, err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE TABLE events(offset INTEGER PRIMARY KEY, event BLOB)")
	var times []time.Duration
	for event := make([]byte, 1<<10); err == nil && len(times) < 2000; {
		begun := time.Now()
		_, err = db.ExecContext(ctx, "INSERT INTO events(event) VALUES(?)", event)
		times = append(times, time.Since(begun))
	}
	return figureOf(times), err
}

// do sends a request with the local token.
func (c *center) do(ctx context.Context, client *http.Client, method, path, media string, body []byte) (answer []byte, status int,
	err error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	if c.token == "" {
		token, _ := os.ReadFile(filepath.Join(c.dir, "token")) // it is not there before the first start
		c.token = string(bytes.TrimSpace(token))
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", media)
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return answer, response.StatusCode, err
}

func (c *center) get(ctx context.Context, path string) (body []byte, status int, err error) {
	return c.do(ctx, c.client, http.MethodGet, path, "", nil)
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

// usage is the center's use of the machine.
type usage struct {
	resident float64 // MiB
	cpu      time.Duration
}

func (c *center) usage() (u usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:])) // from the third on: see proc(5)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	pages, err3 := strconv.Atoi(fields[21])
	return usage{float64(pages*os.Getpagesize()) / (1 << 20), time.Duration(user+system) * 10 * time.Millisecond},
		errors.Join(err1, err2, err3)
}

// figure summarizes many durations.
type figure struct{ p50, p99 time.Duration }

func figureOf(times []time.Duration) figure {
	if len(times) == 0 {
		return figure{}
	}
	slices.Sort(times)
	return figure{times[len(times)/2], times[len(times)*99/100]}
}

func (f figure) String() string {
	return fmt.Sprint(f.p50.Round(100*time.Microsecond), " / ", f.p99.Round(100*time.Microsecond))
}
