// Package pages serves the event center's web pages: the fleet, faults, nodes, leftovers, agents and events. Package web
// has their layout, and signing in.
package pages

import (
	"embed"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web"
)

//go:embed templates
var files embed.FS

type server struct {
	api.Config // of the interface
	*web.Site
	api *api.Server // answers the same questions
}

// onlyOperators is told to readers who send a form.
const onlyOperators = "You may read here. To speak of faults and to declare maintenance is for operators."

// New returns the handler of all pages beside an interface. Without a provider, people sign in only with codes.
func New(center *api.Server, sessions *web.Sessions, provider web.SignIn, version string) http.Handler {
	s := &server{Config: center.Config, api: center, Site: web.New(web.Config{Program: "eventcenter",
		Name: "event center", Templates: files, Blocks: []string{"templates/blocks.html"}, Functions: functions,
		Sessions: sessions, Provider: provider, Log: center.Log, Now: center.Now, Version: version, Navigation: []web.Link{
			{Page: "fleet", Name: "Fleet", Path: "/"},
			{Page: "faults", Name: "Faults", Path: "/faults"},
			{Page: "agents", Name: "Nodes", Path: "/agents"},
			{Page: "leftovers", Name: "Leftovers", Path: "/leftovers"},
			{Page: "events", Name: "Events", Path: "/events"},
			{Page: "subscriptions", Name: "Subscriptions", Path: "/subscriptions"},
			{Page: "report", Name: "Reports", Path: "/reports/daily"},
		}})}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]handler{
		"GET /{$}":                    s.asked("", s.Page("fleet", s.fleet)),
		"GET /faults":                 s.asked(faultFields, s.Page("faults", s.faults)),
		"GET /faults/{check}":         s.asked(faultFields, s.Page("fault", s.fault)),
		"GET /nodes/{cluster}/{node}": s.asked("before", s.Page("node", s.node)),
		"GET /leftovers":              s.asked("", s.Page("leftovers", s.leftovers)),
		"GET /agents":                 s.asked("cluster pool zone state version agent node", s.Page("agents", s.agents)),
		"GET /events":                 s.asked(eventFields+" before after", s.Page("events", s.events)),
		"GET /subscriptions":          s.asked("", s.subscriptions),
		"GET /reports/{period}":       s.asked("date", s.report),
	} {
		mux.HandleFunc(pattern, s.SignedIn(answer))
	}
	mux.HandleFunc("POST /maintenance", s.Operators(onlyOperators, s.maintenance))
	mux.HandleFunc("POST /say", s.Operators(onlyOperators, s.recordAction))
	return s.Handler(mux)
}

type handler = func(http.ResponseWriter, *http.Request, web.Session)

// asked answers a request with these parameters, and shows that others are unknown: a filter with a typo would show all.
func (s *server) asked(parameters string, next handler) handler {
	return func(w http.ResponseWriter, r *http.Request, who web.Session) {
		if err := api.Only(r.URL.Query(), strings.Fields(parameters)...); err != nil {
			s.Fail(w, r, err)
			return
		}
		next(w, r, who)
	}
}

// maxRows limits the rows of a table.
const maxRows = 500

// list is a page with a filter and a table.
type list struct {
	Filter []web.Field
	Rows   any
	Total  int        // of the rows, of which at most maxRows are shown
	Before uint64     // of events: cursor for those before them; 0: there are none
	Query  url.Values // of events
}

func listOf[T any](filter []web.Field, rows []T) list {
	return list{Filter: filter, Rows: rows[:min(maxRows, len(rows))], Total: len(rows)}
}

// given returns the parameters that have a value: a form sends the empty ones too.
func given(q url.Values) url.Values {
	kept := url.Values{}
	for name, values := range q {
		if values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" }); len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// jsonOf returns the address of the data behind a page, with the parameters that it accepts.
func jsonOf(path string, q url.Values, names ...string) string {
	q = maps.Clone(q)
	maps.DeleteFunc(q, func(name string, _ []string) bool { return !slices.Contains(names, name) })
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}
