// The instances: each is asked once a second, separately, so one that hangs delays no other.

const second = 1000;
const passed = ['allowed', 'delayed', 'overridden', 'exempt', 'shadow_denied'];
const notPassed = ['denied', 'banned', 'bad_body'];
const notDecided = ['error'];
const sum = (requests, outcomes) => outcomes.reduce((n, outcome) => n + (requests[outcome] || 0), 0);

// Counts and rates have a number of each kind. Requests that would be denied passed, so they are part of the allowed ones.
const kinds = { allowed: passed, denied: notPassed, shadowDenied: ['shadow_denied'], undecided: notDecided };
const kindNames = Object.keys(kinds);
const ofEachKind = (number) => Object.fromEntries(kindNames.map((kind) => [kind, number(kind)]));
const countsOf = (requests) => ofEachKind((kind) => sum(requests, kinds[kind]));

// rateBetween returns the requests per second between two counts.
const rateBetween = (before, now, span) => ofEachKind((kind) => Math.max(0, now[kind] - before[kind]) / span);

const recently = 600 * second; // about how long Caddy remembers denied keys

class Instance {
	constructor(name, number) {
		this.name = name;
		this.number = number;
		this.path = `/instances/${number}/`;
		this.state = 'connecting'; // up, or down
		this.zones = new Map(); // lists of zones by name; zones of one name can differ
		this.counts = new Map(); // by name, with their instant
		this.rates = new Map(); // by name
		this.deniedAt = new Map(); // when the counts of denials were last seen to grow, by name
		this.status = null;
		this.history = null; // {from, to, rates by name}: what Caddy has kept of the last hour, as of the first answer
	}

	call(method, path, body) {
		return call(method, this.path + path, body);
	}

	async poll() {
		try {
			const zones = await this.call('GET', 'zones');
			const at = elapsed();
			const status = await this.call('GET', 'status');
			if (!this.history) this.keepHistory(await this.call('GET', 'history'), elapsed());
			this.take(zones, status, at);
		} catch (e) {
			if (e.status === 404) this.take([], null, elapsed()); // Caddy runs without zones
			else this.fail(e);
		}
	}

	// keepHistory keeps the rates between the samples of a history.
	keepHistory(history, at) {
		this.history = [];
		const ages = history ? history.ages_seconds : [];
		for (let i = 1; i < ages.length; i++) {
			const span = ages[i - 1] - ages[i];
			const rates = new Map();
			for (const [name, requests] of Object.entries(history.zones)) {
				const countsAt = (n) => countsOf(Object.fromEntries(Object.entries(requests).map(([outcome, all]) => [outcome, all[n]])));
				rates.set(name, rateBetween(countsAt(i - 1), countsAt(i), span));
			}
			this.history.push({ from: at - ages[i - 1] * 1000, to: at - ages[i] * 1000, rates });
		}
	}

	// rateAt returns the rate of a zone at an instant before the first answer, if Caddy has kept it.
	rateAt(name, at) {
		const kept = (this.history || []).find((h) => h.from < at && at <= h.to);
		return kept && kept.rates.get(name);
	}

	take(zones, status, at) {
		if (this.state !== 'up') {
			if (this.state === 'down') message(`${this.name} answers again.`);
			this.since = at;
			this.counts.clear();
		} else if (this.status && status && this.status.started !== status.started) this.counts.clear(); // Caddy has started again
		this.state = 'up';
		this.error = null;
		this.status = status;
		this.zones = Map.groupBy(zones, (z) => z.name);
		this.rates = new Map();
		for (const [name, [zone]] of this.zones) {
			if (!zone.requests) continue;
			const now = { at, ...countsOf(zone.requests) };
			const before = this.counts.get(name);
			this.counts.set(name, now);
			if (now.denied + now.shadowDenied > (before ? before.denied + before.shadowDenied : 0)) this.deniedAt.set(name, at);
			if (!before || now.allowed < before.allowed || now.denied < before.denied) continue;
			this.rates.set(name, rateBetween(before, now, (now.at - before.at) / 1000));
		}
		this.answered = at;
	}

	fail(e) {
		if (this.state !== 'down') {
			if (this.state === 'up') message(`${this.name} does not answer.`, true);
			this.since = this.answered ?? elapsed();
		}
		this.state = 'down';
		this.error = e;
		this.rates = new Map();
		this.status = null;
	}

	// mayHaveDenied reports whether the zone can have denied keys. A zone that doesn't count its requests always can.
	mayHaveDenied(name) {
		const [zone] = this.zones.get(name) || [];
		return Boolean(zone) && (!zone.requests || elapsed() - this.deniedAt.get(name) < recently);
	}

	// memories returns the stores in memory, by name.
	memories() {
		const { memory, local_budgets } = this.status || {};
		return [['memory', memory], ['memory for local budgets', local_budgets]].filter(([, m]) => m);
	}

	// store names the place where the budgets of a zone are. Instances with one Redis share it, unless
	// its address means another place on each machine.
	store(zone) {
		if (zone.store === 'memory') return `${this.name} (memory)`;
		if (/^(redis )?(unix|\/|localhost:|127\.|\[?::1)/.test(zone.store)) return `${zone.store} of ${this.name.replace(/:\d+$/, '')}`;
		return zone.store;
	}
}

let instances = [];

const living = () => instances.filter((i) => i.state === 'up');

// stores returns one living instance for each place with budgets of a zone.
function stores(name) {
	const places = new Map();
	for (const instance of living()) {
		const zone = (instance.zones.get(name) || [])[0];
		if (zone && !places.has(instance.store(zone))) places.set(instance.store(zone), instance);
	}
	return places;
}

const stateTexts = { up: 'up', partly_down: 'partly down', down: 'down', connecting: 'connecting' };

// state shows a state with a sign, a color and a word. The title has the error of a program.
function state(name, text, title) {
	const sign = { up: '●', partly_down: '◐', down: '▲', connecting: '○' }[name] || '○';
	return element('span', { class: `state ${name}`, title }, element('span', { class: 'sign', 'aria-hidden': 'true' }, sign), text || stateTexts[name] || name);
}

function fact(name, ...value) {
	return element('div', { class: 'fact' }, element('dt', {}, name), element('dd', {}, ...value));
}

// storeFacts shows what the status of an instance says about its stores. Without a status it shows
// the stores of the zones.
function storeFacts(instance) {
	const facts = [];
	const memory = (name, m) => {
		const share = m.max_keys > 0 ? m.keys / m.max_keys : 0;
		const overflowed = m.overflowed ? ` · ${integer.format(m.overflowed)} requests shared a budget, because the memory was full` : '';
		facts.push(fact(name, bar(share, `${integer.format(m.keys)} of ${integer.format(m.max_keys)} keys${overflowed}`, share >= 1)));
	};
	if (instance.status) {
		for (const [name, m] of instance.memories()) memory(name === 'memory' ? 'Memory' : 'Local budgets', m);
		for (const r of instance.status.redis || []) {
			const nodes = r.failing_nodes && r.state === 'partly_down' ? `${r.failing_nodes} failing nodes · ` : '';
			const perSlot = r.per_slot_nodes ? `${r.per_slot_nodes} nodes with calls per slot · ` : '';
			facts.push(fact(`Redis ${r.address}`, state(r.state, `${stateTexts[r.state] || r.state} for ${since(r.since)}`, r.error),
				element('span', { class: 'more quiet' }, `${nodes}${perSlot}${integer.format(r.queued)} queued · ${integer.format(r.connections)} connections`)));
		}
		return facts;
	}
	const seen = new Set();
	for (const [zone] of instance.zones.values()) {
		if (seen.has(zone.store)) continue;
		seen.add(zone.store);
		if (zone.store === 'memory') memory('Memory', zone);
		else facts.push(fact(zone.store, state(zone.failing_nodes ? 'down' : 'up')));
	}
	return facts;
}

function showInstances() {
	const cards = $('instance-cards');
	cards.known ||= instances.map(() => {
		const card = element('article', { class: 'card instance' });
		cards.append(card);
		return card;
	});
	instances.forEach((instance, i) => {
		const status = instance.status;
		const facts = instance.state === 'up' ? storeFacts(instance) : [];
		const word = instance.state === 'down' ? `not reachable for ${formatSpan(Math.round((elapsed() - instance.since) / 1000))}` : status ? `up for ${since(status.started)}` : stateTexts[instance.state];
		const version = status && status.version ? element('span', { class: 'version quiet' }, status.version) : null;
		cards.known[i].classList.toggle('is-down', instance.state === 'down');
		setChildren(cards.known[i], element('div', { class: 'card-head' }, element('h3', {}, instance.name, version), state(instance.state, word, instance.error && instance.error.message)),
			instance.error ? element('p', { class: 'failure' }, withoutCause(instance.error.message)) : null,
			element('dl', { class: 'facts' }, ...facts));
	});
	const up = living().length;
	const text = instances.length === 1 ? (up ? `Live · ${clock.format(Date.now())}` : 'Not reachable') : `${up} of ${instances.length} instances · ${clock.format(Date.now())}`;
	setText($('pulse-text'), text);
}
