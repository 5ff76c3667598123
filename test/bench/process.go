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

// cost is what a process uses of a machine. Memory is in KiB.
type cost struct {
	cpu                time.Duration
	rss, peak          int
	anonymous          int // heap and stacks
	file               int // resident pages of files: those of the program
	shared             int // pages that another process has too
	threads, fds, kmsg int // kmsg: descriptors of /dev/kmsg
}

// measure reads /proc: user and system time include those of its children that have ended.
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
	maps, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return cost{}, err
	}
	c := cost{
		cpu: time.Duration(ticks) * 10 * time.Millisecond, threads: field(status, "Threads:"),
		rss: field(maps, "Rss:"), anonymous: field(maps, "Anonymous:"), peak: field(status, "VmHWM:"),
		shared: field(maps, "Shared_Clean:") + field(maps, "Shared_Dirty:"),
	}
	c.file = c.rss - c.anonymous
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	c.fds = len(fds)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "/dev/kmsg" {
			c.kmsg++
		}
	}
	return c, err
}

// field returns the number behind a name that begins a line.
func field(text []byte, name string) int {
	_, after, _ := strings.Cut("\n"+string(text), "\n"+name)
	n, _ := strconv.Atoi(strings.Fields(after + " 0")[0])
	return n
}

// series is what the agent reports of itself: each line of /metrics without its value, and the value.
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
