package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/program"
)

// errNoAnswer means that a child ended without answering a request.
var errNoAnswer = errors.New("no answer")

// probeOutput collects a child's output, line by line, while it can already be read: a hanging child never closes its
// output.
type probeOutput struct {
	complete chan struct{} // closed with the last expected line

	mu     sync.Mutex // guards the fields below
	buffer program.Buffer
	lines  int // still to come
}

func newProbeOutput(requests int) *probeOutput {
	return &probeOutput{
		complete: make(chan struct{}), lines: requests,
		buffer: program.Buffer{Limit: maxProbeOutput + maxProbeLine*requests},
	}
}

func (o *probeOutput) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.buffer.Write(data)
	before := o.lines
	o.lines -= bytes.Count(data[:n], []byte("\n"))
	if before > 0 && o.lines <= 0 {
		close(o.complete)
	}
	return n, err
}

// healthy reports whether the child has answered all requests and none hangs.
func (o *probeOutput) healthy() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lines <= 0 && !bytes.Contains(o.buffer.Bytes(), []byte(`"hung":true`))
}

// parse puts the child's answers into the results of the requests. The last line may be truncated if the child was
// killed.
func (o *probeOutput) parse(results []ProbeResult, requests []ProbeRequest, patience time.Duration,
	ended <-chan struct{}) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	whole := o.buffer.Bytes()
	whole = whole[:bytes.LastIndexByte(whole, '\n')+1]
	for text := range bytes.Lines(whole) {
		var line probeLine
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("answer %q: %w", hosterr.Clip(string(text)), err)
		}
		if line.Number < 0 || line.Number >= len(results) {
			return fmt.Errorf("answer %q: there is no such request", hosterr.Clip(string(text)))
		}
		request, result := requests[line.Number], ProbeResult{Answer: line.Answer}
		switch {
		case line.Hung:
			result.Err, result.Ended = hangs(request, patience), ended
		case line.Skipped:
			result.Err = fmt.Errorf("probe %s %s: %w", request.Op, request.Path, ErrTooManyAbandoned)
		case line.Error != "":
			result.Err = fmt.Errorf("probe %s %s: %s", request.Op, request.Path, line.Error)
		}
		results[line.Number] = result
	}
	return nil
}
