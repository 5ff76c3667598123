package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FlowSchemas is the component of the counts of tenants: Good are the served requests, Bad the throttled ones, by FlowSchema.
const FlowSchemas = "flow-schema"

const (
	maxSchemas = 200
	readLimit  = 20 * time.Second
	maxLine    = 64 << 10
	maxMetrics = 256 << 20 // of one apiserver; a large cluster's has tens of MB
	maxKept    = 8 << 20   // of it, about flow control
)

// The apiserver's metrics: k8s.io/apiserver/pkg/util/flowcontrol/metrics.
const (
	rejectedRequests = "apiserver_flowcontrol_rejected_requests_total"
	waits            = "apiserver_flowcontrol_request_wait_duration_seconds"
)

// Tenants measures how the apiservers serve the requests of tenants, each of which has a FlowSchema. A request is throttled
// if it was rejected, or waited in a queue for more than a second. It reads the metrics of all apiservers that answer: its
// identity needs the right to get the nonResourceURL /metrics.
type Tenants struct {
	Online func() []string // the addresses of the apiservers that answer

	prober *Prober
	wanted map[string]bool
	last   map[string]map[string]Count // since the start of an apiserver: by apiserver and FlowSchema
}

// NewTenants returns a reader for FlowSchemas, at most 200, which adds its counts to a prober's.
func NewTenants(schemas []string, p *Prober) (*Tenants, error) {
	if len(schemas) > maxSchemas {
		return nil, fmt.Errorf("%d FlowSchemas: at most %d", len(schemas), maxSchemas)
	}
	r := &Tenants{Online: p.online, prober: p, wanted: map[string]bool{}, last: map[string]map[string]Count{}}
	for _, name := range schemas {
		r.wanted[name] = true
	}
	return r, nil
}

// Round counts the requests since the last round. The first answer of an apiserver is only a beginning.
func (r *Tenants) Round(ctx context.Context, now time.Time) error {
	var errs []error
	var counts []Count
	next := map[string]map[string]Count{}
	for _, address := range r.Online() {
		read, err := r.read(ctx, address)
		last, known := r.last[address]
		if err != nil {
			errs = append(errs, fmt.Errorf("metrics of the apiserver %s: %w", address, err))
			read = last
		}
		if next[address] = read; err != nil || !known {
			continue
		}
		for name, total := range read {
			was := last[name]
			if total.Good < was.Good || total.Bad < was.Bad {
				was = Count{} // the apiserver was restarted, and its counters began at zero
			}
			if c := (Count{now.Truncate(time.Minute), FlowSchemas, name, total.Good - was.Good, total.Bad - was.Bad, 0}); c.Good+c.Bad > 0 {
				counts = append(counts, c)
			}
		}
	}
	maps.DeleteFunc(next, func(_ string, read map[string]Count) bool { return read == nil })
	r.last = next
	r.prober.Return(counts)
	return errors.Join(errs...)
}

func (r *Tenants) read(ctx context.Context, address string) (map[string]Count, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	response, err := r.prober.get(ctx, address, "/metrics", false)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	text, err := ofFlowControl(io.LimitReader(response.Body, maxMetrics))
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, err
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, slices.Collect(maps.Values(families))...)
	return r.count(samples), err
}

// ofFlowControl keeps the samples of flow control, without their types: an apiserver has a hundred times as many others.
func ofFlowControl(metrics io.Reader) (*bytes.Buffer, error) {
	kept := &bytes.Buffer{}
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		if !bytes.HasPrefix(line, []byte(rejectedRequests)) && !bytes.HasPrefix(line, []byte(waits)) {
			continue
		}
		if kept.Len()+len(line) > maxKept {
			return nil, fmt.Errorf("more than %d bytes about flow control", maxKept)
		}
		kept.Write(line)
		kept.WriteByte('\n')
	}
	return kept, lines.Err()
}

// count adds up the requests of the wanted FlowSchemas. Of a histogram, the sample of the bucket of one second and the
// count of all samples are enough.
func (r *Tenants) count(samples model.Vector) map[string]Count {
	sums := map[string]Count{}
	for _, s := range samples {
		of, name, n := s.Metric[model.MetricNameLabel], string(s.Metric["flow_schema"]), int(s.Value)
		sum, executed := sums[name], s.Metric["execute"] == "true"
		switch {
		case !r.wanted[name]:
			continue
		case of == rejectedRequests, of == waits+"_count" && executed:
			sum.Bad += n
		case of == waits+"_bucket" && executed && s.Metric["le"] == "1":
			sum.Good, sum.Bad = sum.Good+n, sum.Bad-n
		}
		sums[name] = sum
	}
	return sums
}
