// Package adminapi has the bodies of the admin API's requests and answers. The server, the command
// line and the status page share them. It never computes a value. docs/admin.md explains each field.
//
// A span of time is in seconds, with a fraction. An instant is an [Instant].
package adminapi

import (
	"encoding/json"
	"time"
)

// Instant returns an instant as answers have it: in UTC, and in whole milliseconds.
func Instant(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// Zone is a zone of the configuration.
type Zone struct {
	Name        string              `json:"name"`
	Key         Alternatives        `json:"key"`
	IPv4Prefix  int                 `json:"ipv4_prefix"`
	IPv6Prefix  int                 `json:"ipv6_prefix"`
	KeyCase     string              `json:"key_case"`
	Limits      []string            `json:"limits"`
	Plan        *Plan               `json:"plan"`
	Override    map[string][]string `json:"override"` // limits by key, which is percent-encoded or hashed
	Runtime     bool                `json:"runtime_overrides"`
	Concurrency int64               `json:"concurrency"`
	Share       json.RawMessage     `json:"share"`
	Mode        string              `json:"mode"`
	Factor      string              `json:"factor"`
	Ban         string              `json:"ban"`
	Hold        json.RawMessage     `json:"hold"`
	Shadow      bool                `json:"shadow"`
	Enforce     *float64            `json:"enforce"`
	Notify      []int64             `json:"notify"`

	Store        string           `json:"store"`         // memory, or the address of Redis
	Keys         *int64           `json:"keys"`          // nil with Redis
	MaxKeys      int64            `json:"max_keys"`      // 0 with Redis
	FailingNodes int              `json:"failing_nodes"` // 0 in memory
	OnStoreError string           `json:"on_store_error"`
	Requests     map[string]int64 `json:"requests"` // by outcome; nil with disable_metrics
}

// Alternatives are the values of a zone's key. JSON has one value as a string.
type Alternatives []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *Alternatives) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(a))
	}
	*a = make(Alternatives, 1)
	return json.Unmarshal(b, &(*a)[0])
}

// History has the counts of requests of the last hour, at instants that are given by their ages. The oldest comes first.
type History struct {
	Ages []float64 `json:"ages_seconds"`
	// Zones has the counts since the start of the process, by zone and outcome, one for each age. Outcomes that never
	// occurred are left out.
	Zones map[string]map[string][]int64 `json:"zones"`
}

// Plan is the plan of a zone.
type Plan struct {
	By     string              `json:"by"`
	Values map[string][]string `json:"values"` // limits by value
}

// Key is a key of a zone.
type Key struct {
	Zone     string      `json:"zone"`
	Key      string      `json:"key"`               // percent-encoded
	Denials  []DeniedKey `json:"denials,omitempty"` // recently, by this instance; those in shadow mode are apart
	Store    string      `json:"store,omitempty"`   // local: Redis fails, and these are the local budgets
	Override *Override   `json:"override,omitempty"`
	Budgets  []Budgets   `json:"budgets"`
}

// Override is the override in force.
type Override struct {
	From   string    `json:"from"` // config or runtime
	Limits []string  `json:"limits"`
	Until  time.Time `json:"until,omitzero"`  // by the clock of the instance that set it
	Error  string    `json:"error,omitempty"` // why the override can't be read; then it has no effect
}

// Budgets are the budgets of a key for one alternative of the zone's key.
type Budgets struct {
	Alternative string       `json:"alternative,omitempty"` // as configured; empty if the zone has one alternative
	Limits      []Limit      `json:"limits"`
	Concurrency *Concurrency `json:"concurrency,omitempty"`
	Ban         *Ban         `json:"ban,omitempty"`
}

// Limit is the budget of a limit.
type Limit struct {
	Plan      *string `json:"plan,omitempty"`
	Limit     string  `json:"limit"`
	Used      *int64  `json:"used,omitempty"`     // and not given back by time yet; nil if the limit doesn't say
	Reserved  int64   `json:"reserved,omitempty"` // by requests in flight of a zone with settle; it is neither used nor remaining
	Remaining int64   `json:"remaining"`
	// RetryAfter is how long until one event fits: 0 if one fits now, null if none ever will.
	RetryAfter *float64 `json:"retry_after_seconds"`
	ResetAfter float64  `json:"reset_after_seconds"`
}

// Concurrency are the slots of a key.
type Concurrency struct {
	Limit int64 `json:"limit"`
	InUse int64 `json:"in_use"`
}

// Ban is the ban of a key.
type Ban struct {
	Banned bool    `json:"banned"`
	Shadow bool    `json:"shadow,omitempty"` // the key's requests pass all the same
	Ends   float64 `json:"ends_after_seconds"`
}

// ShownKey is a key as operators may see it: the key, or its hash.
type ShownKey struct {
	Key       *string `json:"key,omitempty"`        // percent-encoded; nil for a hashed key
	Cut       bool    `json:"cut,omitempty"`        // Key is only the beginning
	HashedKey string  `json:"hashed_key,omitempty"` // with hash_keys
}

// DeniedKey is a recently denied key.
type DeniedKey struct {
	ShownKey
	Shadow bool      `json:"shadow,omitempty"` // the zone did not deny, because it is in shadow mode for the key
	Denied int64     `json:"denied"`           // how often the key was denied from First to Last
	AtMost int64     `json:"at_most"`          // with denials before First, which may have been of other keys
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Limit  string    `json:"limit"` // what denied the last time: a limit, the slots or the ban
}

// BanList is a page of the bans in force in a zone.
type BanList struct {
	Bans []ListedBan `json:"bans"`
	Next string      `json:"next,omitempty"` // the cursor of the next page; empty on the last one
}

// ListedBan is a ban in force.
type ListedBan struct {
	ShownKey
	Alternative string    `json:"alternative,omitempty"` // as in [Budgets]
	Ends        float64   `json:"ends_after_seconds"`
	Until       time.Time `json:"until"`
	Origin      string    `json:"origin"`           // denials, response, or operator
	Shadow      bool      `json:"shadow,omitempty"` // as in [Ban]
}

// OverrideList is a page of the overrides of a zone.
type OverrideList struct {
	Overrides []ListedOverride `json:"overrides"`
	Next      string           `json:"next,omitempty"` // as in [BanList]
}

// ListedOverride is an override.
type ListedOverride struct {
	ShownKey
	Override
}

// Status is the state of an instance.
type Status struct {
	Version string    `json:"version"` // of the module
	Started time.Time `json:"started"` // when the process started
	Memory  *Memory   `json:"memory,omitempty"`
	Local   *Memory   `json:"local_budgets,omitempty"` // for when a Redis fails
	Redis   []Redis   `json:"redis,omitempty"`
}

// Memory is a store in memory.
type Memory struct {
	Keys       int64 `json:"keys"`
	MaxKeys    int64 `json:"max_keys"`
	Overflowed int64 `json:"overflowed"` // requests that a shared budget decided, since the process started
}

// Redis is a Redis that zones use.
type Redis struct {
	Address      string    `json:"address"` // without secrets
	State        string    `json:"state"`   // up, partly_down for a cluster, or down
	Since        time.Time `json:"since"`   // when the state began, or when the instance first used the Redis
	FailingNodes int       `json:"failing_nodes"`
	Error        string    `json:"error,omitempty"` // the last failure of a server, unless the state is up
	PerSlotNodes int       `json:"per_slot_nodes"`  // nodes of a cluster with a script call for each hash slot
	Queued       int       `json:"queued"`          // requests and corrections that wait to be sent
	Connections  int       `json:"connections"`
}

// ExplainedRequest describes a request to explain.
type ExplainedRequest struct {
	Method   string             `json:"method,omitempty"` // default GET
	URL      string             `json:"url,omitempty"`    // such as https://example.com/login?x=1
	Headers  map[string]Strings `json:"headers,omitempty"`
	ClientIP string             `json:"client_ip,omitempty"`
	User     string             `json:"user,omitempty"` // the ID of the user that authentication would let in
	Body     string             `json:"body,omitempty"`
}

// Strings are the values of a header field. JSON may have one value as a string.
type Strings = Alternatives

// Explanation says how Caddy would decide a request now. Nothing is charged.
type Explanation struct {
	Request  ExplainedRequest   `json:"request"` // with defaults filled in
	Verdict  string             `json:"verdict"` // allowed, delayed, denied, or unlimited
	Decides  *Decision          `json:"decides,omitempty"`
	Handlers []ExplainedHandler `json:"handlers"` // in the order in which the request meets them
	Notes    []string           `json:"notes,omitempty"`
}

// Decision names what decides a request: the limit, ban or slots that deny it longest, or
// that delay it longest.
type Decision struct {
	Zone       string   `json:"zone"`
	Reason     string   `json:"reason"` // limit, reserved, concurrency, ban, body, or store
	Limit      string   `json:"limit,omitempty"`
	RetryAfter *float64 `json:"retry_after_seconds"` // null if waiting won't help
}

// ExplainedHandler is a rate_limit handler that the request meets.
type ExplainedHandler struct {
	Server  string          `json:"server"`
	Reached bool            `json:"reached"` // false if an earlier handler denies the request
	Zones   []ExplainedZone `json:"zones"`
}

// ExplainedZone is a zone of such a handler.
type ExplainedZone struct {
	Zone string `json:"zone"`
	// Applies says whether the zone limits the request: yes, no_match, exempt, unlimited, or
	// ban_only if only the zone's ban applies, because of its scope.
	Applies     string        `json:"applies"`
	Key         *ShownKey     `json:"key,omitempty"`
	Denials     []DeniedKey   `json:"denials,omitempty"`     // as in [Key]
	Alternative string        `json:"alternative,omitempty"` // as in [Budgets]
	Plan        *string       `json:"plan,omitempty"`        // the value of the plan's placeholder
	Override    *Override     `json:"override,omitempty"`
	Cost        int64         `json:"cost"`
	Mode        string        `json:"mode,omitempty"`
	Shadow      bool          `json:"shadow,omitempty"`
	Store       string        `json:"store,omitempty"`   // as in [Key]
	Verdict     string        `json:"verdict,omitempty"` // allowed, delayed, denied, or banned
	Limits      []Limit       `json:"limits,omitempty"`
	Concurrency *Concurrency  `json:"concurrency,omitempty"`
	Ban         *ExplainedBan `json:"ban,omitempty"`
}

// ExplainedBan is the ban of a key, as an explained request meets it.
type ExplainedBan struct {
	Ban
	Begins bool `json:"begins,omitempty"` // the ban would begin with the denial of the request
}
