package probe

import (
	"encoding/json"
	"io"
	"time"
)

const (
	// maxBatch and maxBatchBytes bound the requests to one child, so that they fit into one argument (128 KiB).
	maxBatch      = 64
	maxBatchBytes = 64 << 10
	// probeGap is how long the child waits for one path before it starts the next: a healthy one takes microseconds.
	probeGap = 100 * time.Millisecond
	// maxHanging bounds the hanging paths in one child. Each is a thread in state D, which counts as load.
	maxHanging = 16
)

// probeBatch is the request to one child.
type probeBatch struct {
	// how long a path may take before it counts as hung; 0: forever
	Patience time.Duration `json:"patience,omitempty"`
	Requests []wireRequest `json:"requests"`
}

// wireRequest is a request in the form passed to the child: a path need not be UTF-8.
type wireRequest struct {
	ProbeRequest
	Path []byte `json:"path"` // replaces the embedded one
}

// probeLine is the child's answer to one request. There is one line for each.
type probeLine struct {
	Number  int         `json:"number"`
	Hung    bool        `json:"hung,omitempty"`
	Skipped bool        `json:"skipped,omitempty"` // too many others hang
	Error   string      `json:"error,omitempty"`
	Answer  ProbeAnswer `json:"answer"`
}

// serve runs all requests and writes each answer as soon as it is available. A hanging path occupies one thread; the
// child continues with the others. Only the child itself can know that a path hangs: seen from outside it may only be
// slow to start.
func (b probeBatch) serve(out io.Writer) error {
	lines := json.NewEncoder(out)
	done := make(chan probeLine, len(b.Requests)) // room for all, because some are never read
	pending := make(map[int]bool)
	for i, r := range b.Requests {
		if len(pending) >= maxHanging {
			if err := lines.Encode(probeLine{Number: i, Skipped: true}); err != nil {
				return err
			}
			continue
		}
		pending[i] = true
		go func() { done <- r.line(i) }() // ends with this process at the latest
		if err := collect(lines, done, pending, time.After(probeGap), func() bool { return !pending[i] }); err != nil {
			return err
		}
	}
	var limit <-chan time.Time // nil: forever
	if b.Patience > 0 {
		limit = time.After(b.Patience)
	}
	if err := collect(lines, done, pending, limit, func() bool { return len(pending) == 0 }); err != nil {
		return err
	}
	for i := range pending {
		if err := lines.Encode(probeLine{Number: i, Hung: true}); err != nil {
			return err
		}
	}
	return nil
}

// collect writes lines as they arrive until enough returns true or the limit expires.
func collect(lines *json.Encoder, done <-chan probeLine, pending map[int]bool, limit <-chan time.Time,
	enough func() bool) error {
	for !enough() {
		select {
		case line := <-done:
			delete(pending, line.Number)
			if err := lines.Encode(line); err != nil {
				return err
			}
		case <-limit:
			return nil
		}
	}
	return nil
}

func (r wireRequest) line(number int) probeLine {
	answer, err := r.answer()
	line := probeLine{Number: number, Answer: answer}
	if err != nil {
		line.Error = err.Error()
	}
	return line
}

// batches splits requests so that each part fits into one child's argument.
func batches(requests []ProbeRequest) [][]ProbeRequest {
	var parts [][]ProbeRequest
	begin, bytes := 0, 0
	for i, r := range requests {
		if i > begin && (i-begin == maxBatch || bytes+len(r.Path) > maxBatchBytes) {
			parts, begin, bytes = append(parts, requests[begin:i]), i, 0
		}
		bytes += len(r.Path)
	}
	return append(parts, requests[begin:])
}
