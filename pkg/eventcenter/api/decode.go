package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	maxBody      = 8 << 20 // bytes
	maxBatch     = 1000    // events
	maxAttribute = 2048    // bytes of an attribute
	maxSkew      = 5 * time.Minute
)

// decoded is an event of a request.
type decoded struct {
	journal.Event
	time time.Time
}

// split returns a decoder for each event of a body.
func split(r *http.Request, body []byte) ([]func() (event.Envelope, error), error) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	structured := err == nil && strings.HasPrefix(media, "application/cloudevents")
	charset := params["charset"]
	switch {
	case r.Header.Get("Content-Encoding") != "":
		return nil, refused(http.StatusUnsupportedMediaType, "a Content-Encoding is not supported")
	case structured && charset != "" && !strings.EqualFold(charset, "utf-8"):
		return nil, refused(http.StatusUnsupportedMediaType, "the only charset is utf-8")
	case structured && media == event.MediaType:
		return []func() (event.Envelope, error){func() (event.Envelope, error) { return event.ReadEnvelope(body) }}, nil
	case structured && media == event.BatchMediaType:
		return splitBatch(body)
	case !structured && r.Header.Get("Ce-Specversion") != "":
		return []func() (event.Envelope, error){func() (event.Envelope, error) { return event.ReadBinary(r.Header, body) }}, nil
	}
	return nil, refused(http.StatusUnsupportedMediaType, "want "+event.BatchMediaType+", "+event.MediaType+
		", or a CloudEvent in binary mode")
}

func splitBatch(body []byte) (events []func() (event.Envelope, error), err error) {
	var texts []json.RawMessage
	if err := json.Unmarshal(body, &texts); err != nil {
		return nil, refused(http.StatusBadRequest, "the batch is no JSON array: "+quote(err))
	}
	if len(texts) > maxBatch {
		return nil, refused(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("%d events, %d are possible in one request", len(texts), maxBatch))
	}
	for _, text := range texts {
		events = append(events, func() (event.Envelope, error) { return event.ReadEnvelope(text) })
	}
	return events, nil
}

// decode reads one event. status is for a refusal: 400 for an invalid CloudEvent, 422 for one with forbidden content.
func decode(read func() (event.Envelope, error)) (d decoded, status int, err error) {
	c, err := read()
	d.ID, d.Source, d.Type, d.JSON = c.ID(), c.Source(), c.Type(), c.JSON
	if err != nil {
		return d, http.StatusBadRequest, fmt.Errorf("no CloudEvent: %w", err)
	}
	d.time = c.Time()
	if err := plain(c); err != nil {
		return d, http.StatusBadRequest, err
	}
	if strings.HasPrefix(d.Type, ownPrefix) {
		return d, http.StatusUnprocessableEntity, d.readOwn(c)
	}
	if centers.MatchString(d.Source) {
		return d, http.StatusUnprocessableEntity, errors.New("this source is the center's own")
	}
	if len(c.JSON) > event.MaxSize {
		return d, http.StatusUnprocessableEntity, fmt.Errorf("%d bytes, %d are possible", len(c.JSON), event.MaxSize)
	}
	d.Severity, _ = c.Extensions()["severity"].(string)
	d.Cluster, d.Node, _, _ = event.ReadSource(d.Source)
	return d, 0, nil
}

const ownPrefix = "io.github.nodeagent."

// centers matches the sources of the center's own events, centerTypes their types.
var (
	centers     = regexp.MustCompile(`^/clusters/[^/]*/eventcenter$`)
	centerTypes = regexp.MustCompile(`^io\.github\.nodeagent\.(operator\.|cluster\.|subscription\.|node\.(blind|lost|seen|removed)\.)`)
)

// plain refuses attributes that are too long or contain control characters, and a source that is no URI-reference.
func plain(c event.Envelope) error {
	if !event.IsReference(c.SourceText()) {
		return errors.New("source: must be a URI-reference")
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
func (d *decoded) readOwn(c event.Envelope) error {
	if centerTypes.MatchString(d.Type) {
		return errors.New("this type is for the center itself")
	}
	e, err := c.Decode()
	if err != nil {
		return err
	}
	if err := complete(e); err != nil {
		return err
	}
	_, _, detector, _ := event.ReadSource(d.Source)
	if f, ok := e.Data.(event.Fault); ok && f.Detector != detector {
		return errors.New("data: detector is for the faults of detectors")
	}
	d.Decoded = &e
	d.Cluster, d.Node, d.Severity, d.Stream, d.Sequence = e.Cluster, e.Node, string(e.Severity), e.Stream, e.Sequence
	d.Check, d.Reason = e.Subject.Check, e.Subject.Reason
	return nil
}

var decimal = regexp.MustCompile(`^[0-9]{20}$`)

// complete refuses data that lacks fields required by its type.
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
			if f.Detector != "" {
				return errors.New("data: a snapshot has no faults of detectors")
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
func quote(err error) string { return event.Brief(err.Error(), 500) }
