package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cost is what a process used of a machine.
type cost struct {
	cpu                time.Duration
	rss, own, peak     int // KiB; own: what is nobody else's, the rest are pages of the program's file
	threads, fds, kmsg int // kmsg: descriptors of /dev/kmsg
}

// measure reads /proc: user and system time, its children's included.
func measure(pid int) (cost, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return cost{}, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	var ticks int
	for _, field := range fields[11:15] { // utime stime cutime cstime
		n, err := strconv.Atoi(field)
		if err != nil {
			return cost{}, err
		}
		ticks += n
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return cost{}, err
	}
	c := cost{cpu: time.Duration(ticks) * 10 * time.Millisecond, rss: field(status, "VmRSS:"),
		own: field(status, "RssAnon:"), peak: field(status, "VmHWM:"), threads: field(status, "Threads:")}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	c.fds = len(fds)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "/dev/kmsg" {
			c.kmsg++
		}
	}
	return c, err
}

func field(status []byte, name string) int {
	_, after, _ := strings.Cut(string(status), name)
	n, _ := strconv.Atoi(strings.Fields(after + " 0")[0])
	return n
}

// series is what the agent says of itself: each line of /metrics without its value, and the value.
type series map[string]float64

// metrics reads the agent's own metrics.
func metrics(ctx context.Context) (series, error) {
	// as the harness configures it
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10681/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	s := series{}
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), "} ")
		if name == string(bytes.TrimSpace(line)) { // no labels
			name, value, _ = strings.Cut(name, " ")
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			s[name] = v
		}
	}
	return s, nil
}

// sum adds up all series of a metric.
func (s series) sum(metric string) float64 {
	total := 0.0
	for name, value := range s {
		if base, _, _ := strings.Cut(name, "{"); base == metric {
			total += value
		}
	}
	return total
}
