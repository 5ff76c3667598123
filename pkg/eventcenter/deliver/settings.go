// Package deliver pushes events to subscribers: webhooks and NATS subjects. Each subscription has a durable cursor in
// the journal; each event that it wants is delivered at least once, in the order of its node. An event that a
// subscriber refuses holds back only its own node; a subscriber that is away holds back only itself, for as long as the
// journal keeps events. The package connects only to addresses that the operator has permitted, and follows no
// redirects.
package deliver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expression"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// Settings are the operator's: the permitted targets, and the operator's own subscriptions.
type Settings struct {
	// Origin is the name that the center gives when it asks a target whether it may send. Default "eventcenter".
	Origin string `yaml:"origin"`
	// Targets are the addresses that events may be sent to. A subscription cannot use any other.
	Targets []Target `yaml:"targets"`
	// GiveUpAfter is how long an event is tried before it becomes a dead letter. Default 24h.
	GiveUpAfter time.Duration `yaml:"giveUpAfter"`
	// MaxDeadLetters is how many dead letters a subscription keeps; the oldest go first. Default 1000.
	MaxDeadLetters int `yaml:"maxDeadLetters"`
	// Subscriptions are the operator's. They can be paused, but neither added nor removed while the center runs.
	Subscriptions []Subscription `yaml:"subscriptions"`
}

// Target is an address that events may be sent to, with all paths below it.
type Target struct {
	// URL is http or https, with a host and optionally a port and a path; or nats or tls, with the first part of a
	// subject as its path.
	URL string `yaml:"url"`
	// SecretFile is the absolute path of the signing secrets; it is read again for each request.
	SecretFile string `yaml:"secretFile"`
	// Addresses are the networks that the host may be in. Empty: any except loopback, link-local, and the metadata
	// addresses of clouds.
	Addresses []netip.Prefix `yaml:"addresses"`
	// CAFile is the absolute path of the CA certificates for an https target, PEM; it is read for each connection.
	// Empty: the system's.
	CAFile string `yaml:"caFile"`
	// CredentialsFile is the absolute path of a NATS user's credentials; it is read for each connection.
	CredentialsFile string `yaml:"credentialsFile"`
	// NoHandshake sends without asking the target whether it wants events: the operator vouches for that.
	NoHandshake bool `yaml:"noHandshake"`
}

// Subscription says who wants which events.
type Subscription struct {
	Name   string         `json:"name" yaml:"name"`
	URL    string         `json:"url" yaml:"url"`
	Filter journal.Filter `json:"filter,omitempty" yaml:"filter"`
	// CEL is an expression that must be true too: see package expression.
	CEL  string     `json:"cel,omitempty" yaml:"cel"`
	Mode event.Mode `json:"mode,omitempty" yaml:"mode"` // default batch; NATS takes only structured
	// After is the offset to start after, in digits. Empty: the newest when the center first loads it.
	After string `json:"after,omitempty" yaml:"after"`
}

const (
	maxSubscriptions = 100
	maxTargets       = 1000
	maxURL           = 2048 // bytes
	maxValues        = 100  // of a field of a filter

	defaultGiveUp      = 24 * time.Hour
	defaultDeadLetters = 1000
)

var (
	subscriptionName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // it is also part of a key
	originName       = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?$`)
)

// Read reads settings strictly: an unknown key is an error.
func Read(r io.Reader) (s Settings, err error) {
	if err := settings.Read(r, &s); err != nil {
		return s, err
	}
	s.setDefaults()
	return s, s.problem()
}

func (s *Settings) setDefaults() {
	s.Origin = cmp.Or(s.Origin, "eventcenter")
	s.GiveUpAfter, s.MaxDeadLetters = cmp.Or(s.GiveUpAfter, defaultGiveUp), cmp.Or(s.MaxDeadLetters, defaultDeadLetters)
}

// problem returns the first error in the settings.
func (s Settings) problem() error {
	switch {
	case !originName.MatchString(s.Origin):
		return fmt.Errorf("origin %.255q: want the name of a host", s.Origin)
	case s.GiveUpAfter < time.Second || s.MaxDeadLetters < 1 || s.MaxDeadLetters > 10_000:
		return errors.New("giveUpAfter must be at least 1s, and maxDeadLetters 1 to 10000")
	case len(s.Targets) > maxTargets || len(s.Subscriptions) > maxSubscriptions:
		return fmt.Errorf("%d targets and %d subscriptions, %d and %d are possible", len(s.Targets), len(s.Subscriptions),
			maxTargets, maxSubscriptions)
	}
	for i, t := range s.Targets {
		if err := t.problem(); err != nil {
			return fmt.Errorf("targets.%d: %w", i, err)
		}
	}
	names := map[string]bool{}
	for i, one := range s.Subscriptions {
		if _, err := s.check(one); err != nil {
			return fmt.Errorf("subscriptions.%d: %w", i, err)
		}
		if names[one.Name] {
			return fmt.Errorf("subscriptions.%d: name %q is given twice", i, one.Name)
		}
		names[one.Name] = true
	}
	return nil
}

func (t Target) problem() error {
	u, err := parseURL(t.URL)
	if err != nil {
		return err
	}
	if t.CredentialsFile != "" && (!filepath.IsAbs(t.CredentialsFile) || !toNATS(u)) {
		return fmt.Errorf("%s: credentialsFile must be an absolute path, and is for nats:// and tls:// alone", t.URL)
	}
	if !filepath.IsAbs(t.SecretFile) || t.CAFile != "" && !filepath.IsAbs(t.CAFile) {
		return fmt.Errorf("%s: secretFile and caFile must be absolute paths; secretFile must be set", t.URL)
	}
	return nil
}

// parseURL reads an address in its canonical spelling, so that addresses can be compared.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL:
		return nil, fmt.Errorf("url: %d bytes, %d are possible", len(text), maxURL)
	case err != nil:
		return nil, fmt.Errorf("url: %w", err)
	case u.Scheme != "https" && u.Scheme != "http" && !toNATS(u) || u.Hostname() == "" || u.Opaque != "":
		return nil, fmt.Errorf("url %q: want https://HOST, http://HOST, tls://HOST/SUBJECT or nats://HOST/SUBJECT", text)
	case toNATS(u) && (!natsSubject.MatchString(subjectOf(u)) || u.RawQuery != ""):
		return nil, fmt.Errorf("url %q: its path must be a subject of NATS, without wildcards", text)
	case u.User != nil || u.Fragment != "" || u.RawPath != "" || u.Host != strings.ToLower(u.Host):
		return nil, fmt.Errorf("url %q: want no user, no fragment, no encoded path, and a host in lower case", text)
	case u.Path != "" && strings.TrimSuffix(u.Path, "/") != strings.TrimSuffix(path.Clean(u.Path), "/"):
		return nil, fmt.Errorf("url %q: its path is %q", text, path.Clean(u.Path))
	}
	return u, nil
}

// target returns the target that an address belongs to: with the same scheme, host and port, and the same path or a
// parent of it. The parts of a subject are separated by dots.
func (s Settings) target(address string) (Target, error) {
	u, err := parseURL(address)
	if err != nil {
		return Target{}, err
	}
	best := -1
	for i, t := range s.Targets {
		allowed, err := parseURL(t.URL)
		if err != nil || allowed.Scheme != u.Scheme || hostPort(allowed) != hostPort(u) {
			continue
		}
		divider := "/"
		if toNATS(u) {
			divider = "."
		}
		below := strings.TrimSuffix(allowed.Path, "/") + divider
		if strings.HasPrefix(u.Path+divider, below) && (best < 0 || len(t.URL) > len(s.Targets[best].URL)) {
			best = i
		}
	}
	if best < 0 {
		return Target{}, fmt.Errorf("url %q is not among the targets that the operator permits", address)
	}
	return s.Targets[best], nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "nats": "4222", "tls": "4222"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// check validates a subscription and returns its expression.
func (s Settings) check(one Subscription) (*expression.Expression, error) {
	if !subscriptionName.MatchString(one.Name) {
		return nil, fmt.Errorf("name %.80q: want lower-case letters, digits and '-', at most 63", one.Name)
	}
	if _, err := s.target(one.URL); err != nil {
		return nil, fmt.Errorf("subscription %s: %w", one.Name, err)
	}
	for field, values := range one.Filter {
		if !slices.Contains(journal.Fields(), field) || len(values) == 0 || len(values) > maxValues {
			return nil, fmt.Errorf("subscription %s: filter %.40q: want 1 to %d values of one of %v", one.Name, field,
				maxValues, journal.Fields())
		}
	}
	if one.Mode != "" && !slices.Contains(event.Modes(), one.Mode) {
		return nil, fmt.Errorf("subscription %s: mode %.40q: want one of %v", one.Name, one.Mode, event.Modes())
	}
	if one.toNATS() && one.mode() != event.Structured {
		return nil, fmt.Errorf("subscription %s: mode %s: NATS takes %s alone", one.Name, one.Mode, event.Structured)
	}
	if _, err := one.after(); err != nil {
		return nil, fmt.Errorf("subscription %s: %w", one.Name, err)
	}
	if one.CEL == "" {
		return nil, nil
	}
	x, err := expression.Compile(one.CEL)
	if err != nil {
		return nil, fmt.Errorf("subscription %s: cel: %w", one.Name, err)
	}
	return x, nil
}

// after returns the offset to start after.
func (s Subscription) after() (uint64, error) {
	offset, err := strconv.ParseUint(cmp.Or(s.After, "0"), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("after %.40q: want an offset, in decimal digits", s.After)
	}
	return offset, nil
}

// mode returns the mode that is tried first.
func (s Subscription) mode() event.Mode {
	if s.Mode == "" && s.toNATS() {
		return event.Structured
	}
	return cmp.Or(s.Mode, event.Batch)
}

func (s Subscription) toNATS() bool {
	u, err := url.Parse(s.URL)
	return err == nil && toNATS(u)
}
