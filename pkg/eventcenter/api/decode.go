package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	maxBody      = 8 << 20 // bytes
	maxBatch     = 1000    // events
	maxDepth     = 32      // of JSON
	maxAttribute = 2048    // bytes of an attribute
	maxSkew      = 5 * time.Minute
	bodyLimit    = 30 * time.Second // for a body to arrive
)

// decoded is one event of a request.
type decoded struct {
	journal.Event
	time time.Time
}

// statusError is a refusal of the request as a whole.
type statusError struct {
	status int
	reason string
	events []rejected // where single events are the reason
}

func (e *statusError) Error() string { return e.reason }

// split returns the events of a body, each as structured JSON. Binary ones are decoded by the SDK.
func split(r *http.Request, body []byte) ([]json.RawMessage, error) {
	if r.Header.Get("Content-Encoding") != "" {
		return nil, &statusError{status: http.StatusUnsupportedMediaType, reason: "a Content-Encoding is not supported"}
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return nil, &statusError{status: http.StatusUnsupportedMediaType, reason: "the only charset is utf-8"}
	}
	switch {
	case err == nil && media == cloudevents.ApplicationCloudEventsBatchJSON:
		var events []json.RawMessage
		if err := json.Unmarshal(body, &events); err != nil {
			return nil, &statusError{status: http.StatusBadRequest, reason: "the batch is no JSON array: " + quote(err)}
		}
		if len(events) > maxBatch {
			return nil, &statusError{status: http.StatusRequestEntityTooLarge,
				reason: fmt.Sprintf("%d events, %d are possible in one request", len(events), maxBatch)}
		}
		return events, nil
	case err == nil && media == cloudevents.ApplicationCloudEventsJSON:
		var one json.RawMessage
		if err := json.Unmarshal(body, &one); err != nil {
			return nil, &statusError{status: http.StatusBadRequest, reason: "nothing is stored",
				events: []rejected{{0, "", "no JSON: " + quote(err)}}}
		}
		return []json.RawMessage{one}, nil
	case r.Header.Get("Ce-Specversion") != "":
		text, err := binary(r, body)
		if err != nil {
			return nil, &statusError{status: http.StatusBadRequest, reason: "no CloudEvent: " + quote(err)}
		}
		return []json.RawMessage{text}, nil
	}
	return nil, &statusError{status: http.StatusUnsupportedMediaType,
		reason: "want " + cloudevents.ApplicationCloudEventsBatchJSON +
			", " + cloudevents.ApplicationCloudEventsJSON + ", or a CloudEvent in binary mode"}
}

// binary returns a binary event as structured JSON. The SDK writes data that says to be JSON as it is.
func binary(r *http.Request, body []byte) ([]byte, error) {
	header := r.Header.Clone()
	for name, values := range header {
		if text, err := url.PathUnescape(values[0]); strings.HasPrefix(name, "Ce-") && err == nil {
			values[0] = text // the SDK leaves what the specification has encoded
		}
	}
	message := &http.Request{Header: header, Body: io.NopCloser(bytes.NewReader(body))}
	e, err := cehttp.NewEventFromHTTPRequest(message.WithContext(r.Context()))
	if err != nil {
		return nil, err
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	media := strings.ToLower(e.DataMediaType())
	if len(body) > 0 && (media == "" || strings.HasSuffix(media, "json")) && !json.Valid(body) {
		return nil, errors.New("its data is no JSON")
	}
	return json.Marshal(e)
}

// decode reads one event. status is that of a refusal: 400 for what is no CloudEvent, 422 for one that says what it
// must not.
func decode(text []byte) (d decoded, status int, err error) {
	if n := depth(text); n > maxDepth {
		return d, http.StatusBadRequest, fmt.Errorf("nested %d deep, %d is possible", n, maxDepth)
	}
	var c cloudevents.Event
	if err := c.UnmarshalJSON(text); err != nil { // that it is JSON was verified when the body was split
		return d, http.StatusBadRequest, fmt.Errorf("no CloudEvent: %w", err)
	}
	d.ID, d.Source, d.Type, d.time = c.ID(), c.Source(), c.Type(), c.Time()
	if err := plain(c); err != nil {
		return d, http.StatusBadRequest, err
	}
	canonical, err := json.Marshal(c)
	if err != nil {
		return d, http.StatusBadRequest, fmt.Errorf("no CloudEvent: %w", err)
	}
	d.JSON = canonical
	if strings.HasPrefix(d.Type, ownPrefix) {
		return d, http.StatusUnprocessableEntity, d.readOwn(c)
	}
	if centers.MatchString(d.Source) {
		return d, http.StatusUnprocessableEntity, errors.New("this source is the center's own")
	}
	if len(canonical) > event.MaxSize {
		return d, http.StatusUnprocessableEntity, fmt.Errorf("%d bytes, %d are possible", len(canonical), event.MaxSize)
	}
	d.Severity, _ = c.Extensions()["severity"].(string)
	return d, 0, nil
}

const ownPrefix = "io.github.nodeagent."

// centers matches the sources of what the center itself says, centerTypes the types of it.
var (
	centers     = regexp.MustCompile(`^/clusters/[^/]*/eventcenter$`)
	centerTypes = regexp.MustCompile(`^io\.github\.nodeagent\.(operator\.|cluster\.|subscription\.|node\.(blind|lost|seen|removed)\.)`)
)

// plain refuses what is no CloudEvent, and attributes that are too long or have control characters.
func plain(c cloudevents.Event) error {
	if c.SpecVersion() != cloudevents.CloudEventsVersionV1 {
		return fmt.Errorf("specversion %.20q is not 1.0", c.SpecVersion())
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("no CloudEvent: %w", err)
	}
	attributes := map[string]string{"id": c.ID(), "source": c.Source(), "type": c.Type(), "subject": c.Subject(),
		"datacontenttype": c.DataContentType(), "dataschema": c.DataSchema()}
	for name, value := range c.Extensions() {
		attributes[name], _ = value.(string)
	}
	for name, value := range attributes {
		if len(value) > maxAttribute || len(name) > 64 {
			return fmt.Errorf("%.64s: %d bytes, %d are possible", name, len(value), maxAttribute)
		}
		if strings.ContainsFunc(value, unicode.IsControl) {
			return fmt.Errorf("%s has control characters", name)
		}
	}
	return nil
}

// readOwn reads an event of one of our own types, strictly.
func (d *decoded) readOwn(c cloudevents.Event) error {
	if centerTypes.MatchString(d.Type) {
		return errors.New("this type is for the center itself")
	}
	e, err := event.FromCloudEvent(c, len(d.JSON))
	if err != nil {
		return err
	}
	if err := complete(e); err != nil {
		return err
	}
	d.said(&e)
	return nil
}

// said takes over the attributes of an event of our own.
func (d *decoded) said(e *event.Event) {
	d.Said = e
	d.Cluster, d.Node, d.Severity, d.Stream, d.Sequence = e.Cluster, e.Node, string(e.Severity), e.Stream, e.Sequence
	d.Check, d.Reason = e.Subject.Check, e.Subject.Reason
}

// written decodes a batch that is as our own agents write it. Anything else is not ok, and is refused or taken by decode.
func written(r *http.Request, body []byte) ([]decoded, bool) {
	if r.Header.Get("Content-Type") != event.BatchMediaType || r.Header.Get("Content-Encoding") != "" {
		return nil, false
	}
	all, ok := event.ReadWritten(body)
	if !ok || len(all) > maxBatch {
		return nil, false
	}
	events := make([]decoded, len(all))
	for i := range all {
		e, d := &all[i], &events[i]
		if complete(e.Event) != nil {
			return nil, false
		}
		d.ID, d.Source, d.Type, d.time, d.JSON = e.Name, e.Source, string(e.Type), e.Time, e.JSON
		d.said(&e.Event)
	}
	return events, true
}

var decimal = regexp.MustCompile(`^[0-9]{20}$`)

// complete refuses data that lacks what its type must say.
func complete(e event.Event) error {
	switch data := e.Data.(type) {
	case event.Fault:
		return completeFault(data)
	case event.Activity:
		if data.Check == "" || data.Subject.Kind == "" || data.Kind == "" {
			return errors.New("data: check, kind and subject.kind must be set")
		}
	case event.Snapshot:
		if !decimal.MatchString(data.AsOf) || data.Part < 1 {
			return errors.New("data: asOf must be a sequence, and part count from 1")
		}
		for _, f := range data.Faults {
			if err := completeFault(f); err != nil {
				return err
			}
		}
	case event.Gap:
		for _, r := range data.Ranges {
			if !decimal.MatchString(r.From) || !decimal.MatchString(r.To) || r.From > r.To {
				return errors.New("data: a range must be two sequences, the smaller first")
			}
		}
	}
	return nil
}

func completeFault(f event.Fault) error {
	if f.Check == "" || f.Subject.Kind == "" || f.Reason == "" || !f.Severity.Valid() {
		return errors.New("data: check, subject.kind, reason and severity must be set")
	}
	return nil
}

// quote returns the text of an error in one line.
func quote(err error) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "�"))
	return text[:min(len(text), 500)]
}
