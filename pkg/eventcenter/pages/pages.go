// Package pages serves the event center's web pages: the fleet, faults, nodes, leftovers, agents and events, rendered
// by the program itself. They need neither JavaScript nor other servers. Agents' data is shown as text: html/template
// escapes it, and the Content-Security-Policy permits no script except the center's own file.
package pages

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/share"
)

// Journal is the part of the journal that the pages need.
type Journal interface {
	Append(ctx context.Context, events []journal.Event) (journal.Appended, error)
	Read(ctx context.Context, q journal.Query) (journal.Page, error)
	Bounds() journal.Bounds
}

// Config is the configuration of the pages.
type Config struct {
	Journal  Journal
	Model    *model.Model
	Sessions *Sessions
	Provider SignIn // nil: people sign in only with codes
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

// SignIn is another way to sign in besides codes: at an identity provider.
type SignIn interface {
	// Start redirects a browser there. next is the page to open afterwards.
	Start(w http.ResponseWriter, r *http.Request, next string) error
	// Finish returns the returning person, whether as an operator, and the page to open. An error without Refused is a
	// failure of the provider or of the connection to it.
	Finish(w http.ResponseWriter, r *http.Request) (name string, operator bool, next string, err error)
	// Name is the provider's name, for people.
	Name() string
}

//go:embed templates assets
var files embed.FS

// policy permits only the center's own style and script, and forms to itself.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

type server struct {
	Config
	templates map[string]*template.Template
}

// view is the data of a page.
type view struct {
	Title    string
	Page     string // its place in the navigation
	Path     string // of this page, with its query
	JSON     string // where its data is
	Who      string
	Form     string // see session
	Operator bool
	Now      time.Time
	Version  string
	Said     string // the result of the last action
	Data     any
}

// New returns the handler of all pages.
func New(c Config) http.Handler {
	s := &server{Config: c, templates: map[string]*template.Template{}}
	base := template.Must(template.New("base").Funcs(functions).ParseFS(files, "templates/base.html"))
	for _, name := range []string{"fleet", "faults", "fault", "node", "leftovers", "agents", "events", "report",
		"subscriptions", "login", "message", "welcome"} {
		page := template.Must(base.Clone())
		s.templates[name] = template.Must(page.ParseFS(files, "templates/"+name+".html"))
	}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request, session){
		"GET /{$}":                    s.fleet,
		"GET /faults":                 s.faults,
		"GET /faults/{check}":         s.fault,
		"GET /nodes/{cluster}/{node}": s.node,
		"GET /leftovers":              s.leftovers,
		"GET /agents":                 s.agents,
		"GET /events":                 s.events,
		"GET /subscriptions":          s.subscriptions,
		"GET /reports/{period}":       s.report,
		"POST /maintenance":           s.operators(s.maintenance),
		"POST /say":                   s.operators(s.say),
		"POST /logout":                s.logout,
	} {
		mux.HandleFunc(pattern, s.signedIn(answer))
	}
	mux.HandleFunc("GET /login", s.loginForm)
	mux.HandleFunc("POST /login", s.login)
	if s.Provider != nil {
		mux.HandleFunc("GET /login/start", s.start)
		mux.HandleFunc("GET /login/callback", s.finish)
	}
	static := http.FileServerFS(files)
	mux.HandleFunc("GET /assets/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=3600")
		static.ServeHTTP(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.message(w, r, http.StatusNotFound, "There is no such page.")
	})
	return secured(http.NewCrossOriginProtection().Handler(mux))
}

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
		next.ServeHTTP(w, r)
	})
}

// signedIn serves people who are signed in, and lets others sign in.
func (s *server) signedIn(answer func(http.ResponseWriter, *http.Request, session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.Sessions.of(r)
		if err != nil && !errors.Is(err, errNoSession) {
			s.Log.Error("read a session failed", "err", err)
			s.message(w, r, http.StatusServiceUnavailable, "Who is signed in cannot be read now: try again.")
			return
		}
		if err != nil {
			http.Redirect(w, r, "/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		if r.Method == http.MethodPost && !who.permits(r.PostFormValue("form")) {
			s.message(w, r, http.StatusForbidden, "This form is not of this session. Open the page again.")
			return
		}
		answer(w, r, who)
	}
}

// operators serves operators only: readers can change no state.
func (s *server) operators(answer func(http.ResponseWriter, *http.Request, session)) func(http.ResponseWriter, *http.Request, session) {
	return func(w http.ResponseWriter, r *http.Request, who session) {
		if !who.Operator {
			s.message(w, r, http.StatusForbidden, "You may read here. To speak of faults and to declare maintenance is for operators.")
			return
		}
		answer(w, r, who)
	}
}

// show renders a page completely before it sends the first byte.
func (s *server) show(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	v.Path, v.Now, v.Version, v.Page = r.URL.RequestURI(), s.Now(), s.Version, name
	if who, err := s.Sessions.of(r); err == nil {
		v.Who, v.Form, v.Operator = who.Name, who.Form, who.Operator
	}
	var page bytes.Buffer
	if err := s.templates[name].ExecuteTemplate(&page, "base", v); err != nil {
		s.Log.Error("render a page failed", "page", name, "err", err)
		http.Error(w, "this page cannot be rendered; the log of the center says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = page.WriteTo(w)
}

func (s *server) message(w http.ResponseWriter, r *http.Request, status int, text string) {
	s.show(w, r, status, "message", view{Title: http.StatusText(status), Data: text})
}

// signIn is the data of the sign-in page.
type signIn struct {
	Next     string
	Provider string
}

// askToSignIn shows the ways to sign in.
func (s *server) askToSignIn(w http.ResponseWriter, r *http.Request, status int, next, said string) {
	data := signIn{Next: next}
	if s.Provider != nil {
		data.Provider = s.Provider.Name()
	}
	s.show(w, r, status, "login", view{Title: "Sign in", Data: data, Said: said})
}

func (s *server) loginForm(w http.ResponseWriter, r *http.Request) {
	s.askToSignIn(w, r, http.StatusOK, next(r.URL.Query().Get("next")), "")
}

func (s *server) login(w http.ResponseWriter, r *http.Request) {
	to := next(r.PostFormValue("next"))
	cookie, err := s.Sessions.signIn(r.Context(), share.Of(r), r.PostFormValue("code"))
	if errors.Is(err, errCode) {
		s.askToSignIn(w, r, http.StatusForbidden, to, "This code is not known, was used, or has ended. Make another one.")
		return
	}
	if err != nil {
		s.notSignedIn(w, r, to, err)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // a page of this center: see next
}

// start redirects a person to the identity provider.
func (s *server) start(w http.ResponseWriter, r *http.Request) {
	to := next(r.URL.Query().Get("next"))
	if err := s.Provider.Start(w, r, to); err != nil {
		s.noProvider(w, r, to, err)
	}
}

// finish signs in a person returning from the provider. It uses Refresh, not a redirection: the browser would still
// count a redirection as the provider's navigation, and send no SameSite=Strict cookie.
func (s *server) finish(w http.ResponseWriter, r *http.Request) {
	name, operator, to, err := s.Provider.Finish(w, r)
	to = next(to)
	if err != nil {
		s.noProvider(w, r, to, err)
		return
	}
	cookie, err := s.Sessions.open(r.Context(), name, operator)
	if err != nil {
		s.notSignedIn(w, r, to, err)
		return
	}
	http.SetCookie(w, cookie)
	w.Header().Set("Refresh", "0; url="+to)
	s.show(w, r, http.StatusOK, "welcome", view{Title: "Signed in", Data: to})
}

// notSignedIn shows why a session cannot start now.
func (s *server) notSignedIn(w http.ResponseWriter, r *http.Request, to string, err error) {
	said := "Too many people are signed in."
	if !errors.Is(err, errManySessions) {
		s.Log.Error("store a session failed", "err", err)
		said = "Nobody can sign in now; the log of the center says why."
	}
	s.askToSignIn(w, r, http.StatusServiceUnavailable, to, said)
}

// noProvider shows why signing in at the provider failed.
func (s *server) noProvider(w http.ResponseWriter, r *http.Request, to string, err error) {
	if refusal, ok := errors.AsType[interface {
		error
		Refused() string
	}](err); ok {
		s.askToSignIn(w, r, http.StatusForbidden, to, refusal.Refused())
		return
	}
	s.Log.Error("sign-in at the identity provider failed", "err", err)
	s.askToSignIn(w, r, http.StatusBadGateway, to, "The identity provider cannot be asked now; the log of the center says why.")
}

// next returns the page of this center in a text, or the first page.
func next(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || len(text) < 2 || text[0] != '/' ||
		text[1] == '/' || text[1] == '\\' {
		return "/"
	}
	return u.RequestURI()
}

func (s *server) logout(w http.ResponseWriter, r *http.Request, _ session) {
	cookie, err := s.Sessions.signOut(r)
	if err != nil {
		s.Log.Error("end a session failed", "err", err)
		s.message(w, r, http.StatusServiceUnavailable, "The session cannot be ended now: try again.")
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
