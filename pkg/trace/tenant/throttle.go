// Package tenant measures how the apiservers serve the requests of tenants, each of which has a FlowSchema. A request is
// throttled if it was rejected, or waited in a queue for more than a second.
package tenant

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
)

// Component is the component of the counts: Good are the served requests, Bad the throttled ones, by FlowSchema.
const Component = "flow-schema"

// MaxSchemas limits the FlowSchemas of one reader.
const MaxSchemas = 200

const (
	interval   = time.Minute
	limit      = 20 * time.Second
	maxLine    = 64 << 10
	maxMetrics = 256 << 20 // of one apiserver; a large cluster's has tens of MB
	maxKept    = 8 << 20   // of it, about flow control
)

// The apiserver's metrics: k8s.io/apiserver/pkg/util/flowcontrol/metrics.
const (
	rejectedRequests = "apiserver_flowcontrol_rejected_requests_total"
	waits            = "apiserver_flowcontrol_request_wait_duration_seconds"
)

// Reader reads the metrics of all apiservers once a minute. Its identity needs the right to get the nonResourceURL /metrics.
type Reader struct {
	Servers probe.Apiservers
	Online  func() []string // the addresses of the apiservers that answer
	Add     func(probe.Count)
	Log     *slog.Logger

	wanted map[string]bool
	last   map[string]map[string]requests // by apiserver and FlowSchema
}

// requests are counters of one FlowSchema since the start of an apiserver.
type requests struct{ served, throttled float64 }

// New returns a reader for FlowSchemas.
func New(schemas []string, servers probe.Apiservers, prober *probe.Prober, log *slog.Logger) (*Reader, error) {
	if len(schemas) > MaxSchemas {
		return nil, fmt.Errorf("%d FlowSchemas: at most %d", len(schemas), MaxSchemas)
	}
	r := &Reader{Servers: servers, Online: prober.Online, Add: prober.Add, Log: log, wanted: map[string]bool{},
		last: map[string]map[string]requests{}}
	for _, name := range schemas {
		r.wanted[name] = true
	}
	return r, nil
}

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	chore.Repeat(ctx, r.Log, interval, chore.Chore{Name: "read the apiservers' metrics", Do: r.Round})
}

// Round counts the requests since the last round. The first answer of an apiserver is only a beginning.
func (r *Reader) Round(ctx context.Context, now time.Time) error {
	var errs []error
	sums, next := map[string]requests{}, map[string]map[string]requests{}
	for _, address := range r.Online() {
		read, err := r.read(ctx, address)
		last, known := r.last[address]
		if err != nil {
			errs = append(errs, fmt.Errorf("metrics of the apiserver %s: %w", address, err))
			if known {
				next[address] = last
			}
			continue
		}
		if next[address] = read; !known {
			continue
		}
		for name, total := range read {
			sums[name] = sums[name].plus(total.since(last[name]))
		}
	}
	r.last = next
	for name, sum := range sums {
		if sum != (requests{}) {
			r.Add(probe.Count{Minute: now.Truncate(time.Minute), Component: Component, Instance: name, Good: int(sum.served), Bad: int(sum.throttled)})
		}
	}
	return errors.Join(errs...)
}

func (q requests) plus(other requests) requests {
	return requests{q.served + other.served, q.throttled + other.throttled}
}

// since returns the requests after an earlier reading. After a restart of the apiserver, its counters begin at zero.
func (q requests) since(last requests) requests {
	if q.served < last.served || q.throttled < last.throttled {
		return q
	}
	return requests{q.served - last.served, q.throttled - last.throttled}
}

func (r *Reader) read(ctx context.Context, address string) (map[string]requests, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, url, err := r.Servers.At(address, "/metrics")
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
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
	return r.count(families), nil
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
func (r *Reader) count(families map[string]*dto.MetricFamily) map[string]requests {
	sums := map[string]requests{}
	add := func(family string, of func(labels map[string]string, value float64) requests) {
		for _, m := range families[family].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if name := labels["flow_schema"]; r.wanted[name] {
				sums[name] = sums[name].plus(of(labels, m.GetUntyped().GetValue()))
			}
		}
	}
	add(rejectedRequests, func(_ map[string]string, n float64) requests { return requests{throttled: n} })
	add(waits+"_count", func(labels map[string]string, n float64) requests {
		if labels["execute"] != "true" {
			return requests{}
		}
		return requests{throttled: n}
	})
	add(waits+"_bucket", func(labels map[string]string, n float64) requests {
		if labels["execute"] != "true" || labels["le"] != "1" {
			return requests{}
		}
		return requests{served: n, throttled: -n}
	})
	return sums
}
