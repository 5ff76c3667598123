// Package pages serves the event center's web pages: the fleet, faults, nodes, leftovers, agents and events. Package web
// has their layout, and signing in.
package pages

import (
	"context"
	"embed"
	"log/slog"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Config is the configuration of the pages.
type Config struct {
	Journal  journal.Journal
	Model    *model.Model
	Sessions *web.Sessions
	Provider web.SignIn // nil: people sign in only with codes
	Log      *slog.Logger
	Now      func() time.Time
	Alive    time.Duration // interval of agents' signs of life
	Version  string
	Reports  api.Reports

	// Deliveries returns the running manager; nil while another replica delivers. Nil: this center delivers no events.
	Deliveries func() *deliver.Manager
	// Forward lets the delivering replica answer. Nil: there is only one replica.
	Forward func(context.Context, api.Forwarded) (api.Answer, error)
}

//go:embed templates
var files embed.FS

type server struct {
	Config
	*web.Site
}

// onlyOperators is told to readers who send a form.
const onlyOperators = "You may read here. To speak of faults and to declare maintenance is for operators."

// New returns the handler of all pages.
func New(c Config) http.Handler {
	s := &server{Config: c, Site: web.New(web.Config{Program: "eventcenter", Name: "event center", Templates: files,
		Blocks: []string{"templates/blocks.html"}, Functions: functions, Sessions: c.Sessions, Provider: c.Provider, Log: c.Log,
		Now: c.Now, Version: c.Version, Navigation: []web.Link{
			{Page: "fleet", Name: "Fleet", Path: "/"},
			{Page: "faults", Name: "Faults", Path: "/faults"},
			{Page: "agents", Name: "Nodes", Path: "/agents"},
			{Page: "leftovers", Name: "Leftovers", Path: "/leftovers"},
			{Page: "events", Name: "Events", Path: "/events"},
			{Page: "subscriptions", Name: "Subscriptions", Path: "/subscriptions"},
			{Page: "report", Name: "Reports", Path: "/reports/daily"},
		}})}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request, web.Session){
		"GET /{$}":                    s.fleet,
		"GET /faults":                 s.faults,
		"GET /faults/{check}":         s.fault,
		"GET /nodes/{cluster}/{node}": s.node,
		"GET /leftovers":              s.leftovers,
		"GET /agents":                 s.agents,
		"GET /events":                 s.events,
		"GET /subscriptions":          s.subscriptions,
		"GET /reports/{period}":       s.report,
	} {
		mux.HandleFunc(pattern, s.SignedIn(answer))
	}
	mux.HandleFunc("POST /maintenance", s.Operators(onlyOperators, s.maintenance))
	mux.HandleFunc("POST /say", s.Operators(onlyOperators, s.recordAction))
	return s.Handler(mux)
}
