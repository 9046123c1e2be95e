// The zones: a card with a chart for each, and the details of the chosen one.

const cards = new Map(); // by name of the zone
let chosen = null; // the name of a zone

// addRates adds the rates of those instances that know them.
function addRates(all) {
	const rates = all.filter(Boolean);
	if (rates.length === 0) return null;
	return rates.reduce((a, b) => ofEachKind((kind) => a[kind] + b[kind]));
}

// rateOf returns the rates of a zone, over all instances.
const rateOf = (name) => addRates(living().map((i) => i.rates.get(name)));

// keptPoints returns the points of a chart for what Caddy has kept of the last hour. They have the instants of the
// instance that has most. A point stands for the time since the point before, so the first one is a gap.
function keptPoints(name) {
	const [most = []] = living().map((i) => i.history || []).sort((a, b) => b.length - a.length);
	const points = most.map(({ to }) => ({ at: to, ...(addRates(living().map((i) => i.rateAt(name, to))) || noRate) }));
	return most.length ? [{ at: most[0].from, ...noRate }, ...points] : [];
}

const variants = (name) => living().flatMap((i) => i.zones.get(name) || []);

// settingsOf returns what a zone is set to, without its counts.
function settingsOf(zone) {
	const { keys, max_keys, failing_nodes, requests, store, ...settings } = zone;
	return settings;
}

const isEqualEverywhere = (list) => list.every((z) => sameText(settingsOf(z), settingsOf(list[0])));

const canBan = (z) => z.ban || z.hold;

function badges(list) {
	const [zone] = list;
	const texts = [];
	if (zone.shadow) texts.push('shadow: denies nothing');
	if (zone.enforce !== undefined && zone.enforce !== null) texts.push(`enforces ${zone.enforce} %`);
	if (zone.concurrency) texts.push(`concurrency ${zone.concurrency}${zone.share ? ` share ${inCaddyfile(zone.share.by)}` : ''}`);
	if (zone.ban) texts.push(`ban ${zone.ban.replace(/(\d[hm])0m0s|(\d+m)0s/g, '$1$2').replace(/^(\S+)(.*) max \1$/, '$1$2')}`);
	if (zone.hold) texts.push('hold');
	if (zone.plan) texts.push(`plan by ${inCaddyfile(zone.plan.by)}`);
	if (!isEqualEverywhere(list)) texts.push('settings differ');
	return texts;
}

// limitLines are the limits of a zone, with a line for each plan. A card has room for a few.
const shownPlans = 6;

function limitLines(list, most) {
	const codes = (limits) => [...new Set(limits)].flatMap((l) => [' ', element('code', {}, l)]);
	const own = list.flatMap((z) => z.limits || []);
	const plans = Object.entries(Object.assign({}, ...list.map((z) => (z.plan ? z.plan.values : {}))));
	if (plans.length === 0) return [element('li', {}, ...(own.length ? codes(own) : [element('span', { class: 'quiet' }, 'no rate limit')]))];
	const lines = [[undefined, own], ...plans].slice(0, most).map(([plan, limits]) => element('li', {}, planName(plan), ...codes(limits)));
	if (plans.length >= most) lines.push(element('li', { class: 'quiet' }, `and ${plans.length + 1 - most} more plans`));
	return lines;
}

// isDry reports whether a zone lets pass requests that it would deny.
const isDry = (list) => list.some((z) => z.shadow || (z.enforce !== undefined && z.enforce !== null));

// figures are the numbers of a card: the class, the name, and the value, by the rates now and the requests of 3 minutes.
const percent = (n, { allowed, denied }) => (allowed + denied > 0 ? `${formatRate((100 * n) / (allowed + denied))} %` : '–');
const figures = [
	['allowed', 'Allowed/s', (rate) => formatRate(rate.allowed)],
	['denied', 'Denied/s', (rate) => formatRate(rate.denied)],
	['', 'Denied, 3 min', (rate, all) => percent(all.denied, all)],
	['would', 'Would deny/s', (rate) => formatRate(rate.shadowDenied)],
	['would', 'Would deny, 3 min', (rate, all) => percent(all.shadowDenied, all)],
];

class Card {
	constructor(name) {
		this.name = name;
		this.chart = new Chart(name, chartMinutes);
		this.chart.points = keptPoints(name);
		this.hour = new Chart(name, 60); // has a point for each minute
		this.hour.points = [...this.chart.points];
		this.button = element('button', { class: 'zone-name', 'aria-pressed': 'false', onclick: () => choose(name, true) }, name);
		this.limits = element('ul', { class: 'limit-texts' });
		this.figures = figures.map(([kind, title]) => element('div', { class: kind }, element('dt', {}, title), element('dd', {}, '–')));
		this.badges = element('p', { class: 'badges' });
		this.element = element('article', { class: 'card zone' },
			element('div', { class: 'card-head' }, element('h3', {}, this.button)),
			this.limits, this.badges, this.chart.element,
			element('dl', { class: 'numbers' }, ...this.figures));
		this.element.dataset.zone = name;
	}

	show(at) {
		const list = variants(this.name);
		const rate = rateOf(this.name);
		this.chart.add(at, rate);
		this.element.classList.toggle('denies', Boolean(rate && rate.denied > 0));
		const all = this.chart.last(chartMinutes * 60);
		const { points } = this.hour;
		if (points.length === 0 || at - points[points.length - 1].at >= 60000) {
			const minute = this.chart.last(60);
			this.hour.add(at, minute.seconds > 0 ? ofEachKind((kind) => minute[kind] / minute.seconds) : rate);
		}
		this.isDry = isDry(list) || all.shadowDenied > 0;
		figures.forEach(([kind, , value], i) => {
			this.figures[i].hidden = kind === 'would' && !this.isDry;
			setText(this.figures[i].lastChild, value(rate || noRate, all));
		});
		this.element.classList.toggle('is-gone', list.length === 0);
		if (list.length === 0) {
			setChildren(this.badges, element('span', { class: 'badge' }, 'no instance that answers has this zone'));
			return;
		}
		setChildren(this.limits, ...limitLines(list, shownPlans));
		setChildren(this.badges, ...badges(list).map((text) => element('span', { class: 'badge' }, text)));
	}
}

function showZones(at) {
	const names = [...new Set(instances.flatMap((i) => [...i.zones.keys()]))].sort();
	for (const name of names) {
		if (cards.has(name)) continue;
		cards.set(name, new Card(name));
		const later = [...cards.keys()].filter((other) => other > name).sort()[0];
		$('zone-cards').insertBefore(cards.get(name).element, later === undefined ? null : cards.get(later).element);
	}
	for (const [name, card] of cards) {
		if (names.includes(name)) {
			card.show(at);
			continue;
		}
		card.element.remove();
		cards.delete(name);
	}
	$('legend-would').hidden = ![...cards.values()].some((card) => card.isDry);
	filterZones();
	$('no-answer').hidden = names.length > 0 || living().length > 0 || instances.some((i) => i.state === 'connecting');
	$('no-zones').hidden = names.length > 0 || living().length === 0;
	if (!names.includes(chosen)) choose(names[0] || null, false);
	showDetails();
}

// With many zones, a text finds those that have it in their names.
const manyZones = 9;

function filterZones() {
	$('find-zone').hidden = cards.size <= manyZones;
	const text = $('find-zone').hidden ? '' : $('find-zone-text').value.trim().toLowerCase();
	let found = 0;
	for (const [name, card] of cards) {
		card.element.hidden = !name.toLowerCase().includes(text);
		if (!card.element.hidden) found++;
	}
	$('none-found').hidden = found > 0 || cards.size === 0;
}

$('find-zone').addEventListener('submit', (event) => {
	event.preventDefault();
	const first = [...cards].find(([, card]) => !card.element.hidden);
	if (first) choose(first[0], true);
});
$('find-zone-text').addEventListener('input', filterZones);

function choose(name, byHand) {
	const isOther = name !== chosen;
	chosen = name;
	$('zone').hidden = name === null;
	for (const [other, card] of cards) {
		card.button.setAttribute('aria-pressed', String(other === name));
		card.element.classList.toggle('is-chosen', other === name);
	}
	if (name !== null && isOther) {
		lists.forEach((list) => list.clear());
		showDetails();
		lists.forEach((list) => list.refresh());
	}
	if (byHand) $('zone').scrollIntoView({ block: 'nearest', behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth' });
}

const outcomeTexts = {
	allowed: 'allowed', delayed: 'delayed, then passed', denied: 'denied by a limit', banned: 'denied by a ban', shadow_denied: 'would be denied (shadow mode)',
	overridden: 'without a limit', exempt: 'exempt', denied_elsewhere: 'denied by another zone', bad_body: 'denied for an unreadable body', error: 'the store could not decide',
};

function showDetails() {
	const list = variants(chosen);
	setText($('zone-heading'), chosen === null ? 'Zone' : `Zone ${chosen}`);
	if (list.length === 0) return;
	const [zone] = list;
	const settings = [element('span', {}, 'Key ', element('code', {}, inCaddyfile([zone.key].flat().join(' or '))))];
	if (zone.ipv6_prefix) settings.push(element('span', {}, `IPv6 prefix ${zone.ipv6_prefix}`));
	if (zone.ipv4_prefix) settings.push(element('span', {}, `IPv4 prefix ${zone.ipv4_prefix}`));
	settings.push(element('span', {}, 'Store ', element('code', {}, [...new Set(list.map((z) => z.store))].join(', '))));
	setChildren($('zone-settings'), ...settings);
	setChildren($('zone-limits'), ...limitLines(list, Infinity));
	const hour = cards.get(chosen).hour.element;
	if ($('zone-hour').firstChild !== hour) $('zone-hour').replaceChildren(hour);

	const hasBans = list.some(canBan), hasOverrides = list.some((z) => z.runtime_overrides);
	$('bans-new').hidden = !hasBans;
	$('overrides-new').hidden = !hasOverrides;
	lists.forEach((l) => l.show());
	showOutcomes();
	showByInstance();
}

function showOutcomes() {
	const counts = living().flatMap((i) => (i.zones.get(chosen) || []).slice(0, 1)).map((z) => z.requests).filter(Boolean);
	$('outcomes-empty').hidden = counts.length > 0;
	const rows = Object.keys(outcomeTexts).map((outcome) => ({ outcome, n: counts.reduce((n, c) => n + (c[outcome] || 0), 0) }));
	updateRows($('outcomes-rows'), counts.length ? rows.filter((r) => r.n > 0 || r.outcome === 'allowed' || r.outcome === 'denied') : [], (r) => r.outcome,
		(r) => element('tr', {}, element('th', { scope: 'row' }, outcomeTexts[r.outcome]), element('td', { class: 'number' })),
		(row, r) => setText(row.lastChild, integer.format(r.n)));
}

// showByInstance shows in which way the instances differ.
function showByInstance() {
	$('by-instance').hidden = instances.length < 2;
	if (instances.length < 2) return;
	const all = rateOf(chosen);
	const usual = variants(chosen)[0];
	updateRows($('by-instance-rows'), instances, (i) => i.number,
		(i) => element('tr', {}, element('th', { scope: 'row' }, i.name), element('td', { class: 'number' }), element('td', { class: 'number' }), element('td', {}), element('td', {})),
		(row, i) => {
			const [, allowed, denied, share, settings] = row.children;
			const rate = i.rates.get(chosen);
			setText(allowed, formatRate(rate && rate.allowed));
			setText(denied, formatRate(rate && rate.denied));
			const part = rate && all && all.allowed + all.denied > 0 ? (rate.allowed + rate.denied) / (all.allowed + all.denied) : null;
			setChildren(share, part === null ? '–' : bar(part, `${Math.round(part * 100)} %`));
			const zones = i.zones.get(chosen);
			let text = 'the same';
			if (i.state !== 'up') text = 'not reachable';
			else if (!zones) text = 'does not have the zone';
			else if (!isEqualEverywhere([usual, ...zones])) text = `differ: ${zones.flatMap((z) => z.limits || []).join(', ') || 'other settings'}`;
			setText(settings, text);
			row.classList.toggle('is-down', i.state !== 'up');
		});
}

// A list of keys: the most denied ones, the bans, or the overrides. It is about the chosen zone, or about all zones.
class KeyList {
	constructor(id, path, every, options) {
		Object.assign(this, { id, path, every, zones: () => [chosen], asks: () => true, keeps: () => true, most: Infinity, evidence: () => [], ...options });
		this.asked = -Infinity;
		this.clear();
		if ($(`${id}-more`)) $(`${id}-more`).addEventListener('click', () => this.more());
	}

	clear() {
		this.items = null;
		this.errors = [];
		this.isTruncated = false;
		this.pages = 1;
		this.asking = null; // the latest refresh, until it ends
		updateRows($(`${this.id}-rows`), [], () => '', null, null);
	}

	more() {
		this.pages += 1;
		this.refresh();
	}

	// refresh asks the instances for the list. A page can be empty and still have a next one. Only the
	// answers to the latest refresh are shown, because earlier ones can come later.
	async refresh() {
		this.asked = elapsed();
		const asking = (this.asking = {});
		const errors = [];
		let isTruncated = false;
		const sources = this.zones().flatMap((zone) => (this.eachInstance ? living().filter((i) => this.asks(i, zone)).map((i) => [zone, i.name, i]) : [...stores(zone)].map(([place, i]) => [zone, place, i])));
		const answers = await Promise.all(sources.map(async ([zone, place, instance]) => {
			const found = [];
			let cursor = '';
			try {
				for (let page = 0; page < 20 * this.pages; page++) {
					const query = this.field ? `?limit=100${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}` : '';
					const answer = await instance.call('GET', zonePath(zone, `/${this.path}`) + query);
					for (const item of this.field ? answer[this.field] || [] : answer) if (this.keeps(item)) found.push({ ...item, zone, place, instance });
					cursor = this.field ? answer.next : '';
					if (!cursor || found.length >= 100 * this.pages) break;
				}
				if (cursor) isTruncated = true;
			} catch (e) {
				if (e.status >= 400 && e.status < 500) return found; // the zone has no such list
				const where = [this.ofAll ? zone : '', sources.some(([, other]) => other !== place) ? place : ''].filter(Boolean).join(' at ');
				const text = e.status === 503 ? 'The store is failing, so the list is unknown until it works again.' : withoutCause(e.message);
				errors.push(where ? `${where}: ${text}` : text);
			}
			return found;
		}));
		if (asking !== this.asking) return;
		Object.assign(this, { asking: null, items: this.merge(answers.flat()), errors, isTruncated });
		this.show();
	}

	// merge joins the items of one key. Items of one place only stay with the place. The
	// alternatives of a key are joined, too, because a change applies to all of them.
	merge(items) {
		const merged = new Map();
		for (const item of items) {
			const id = `${this.ofAll ? `${item.zone} ` : ''}${sameKey(item)} ${item.from || ''} ${item.shadow || ''} ${this.eachInstance ? '' : item.place}`;
			const known = merged.get(id);
			if (known) {
				if (item.denied !== undefined) Object.assign(known, addDenials(known, item));
				if (new Date(item.until) > new Date(known.until)) known.until = item.until;
				const place = known.places.find(([name]) => name === item.place);
				if (place) place[1] += item.denied;
				else known.places.push([item.place, item.denied]);
			} else merged.set(id, { ...item, id, places: [[item.place, item.denied]] });
		}
		return [...merged.values()].sort(this.order || (() => 0)).slice(0, this.most);
	}

	show() {
		updateRows($(`${this.id}-rows`), this.items || [], (item) => item.id,
			(item) => {
				const open = element('button', { class: 'key-button', onclick: () => lookAt(item.zone, item.key) }, shownKey(item));
				const zone = this.ofAll ? element('span', { class: 'zone-of-key quiet' }, 'zone ', element('button', { class: 'link', onclick: () => choose(item.zone, true) }, item.zone)) : null;
				const badge = item.shadow ? [' ', element('span', { class: 'badge' }, 'would be denied')] : [];
				return element('tr', {}, element('th', { scope: 'row' }, changeable(item) ? open : shownKey(item), ...badge, zone, element('span', { class: 'evidence quiet' }), element('span', { class: 'places quiet' })),
					element('td', { class: this.isNumber ? 'number' : '' }), this.actions ? element('td', { class: 'actions' }) : null);
			},
			(row, item) => {
				const several = (this.eachInstance ? instances.length : stores(item.zone).size) > 1;
				setText(row.querySelector('.places'), several ? item.places.map(([place, n]) => (n === undefined || item.places.length === 1 ? place : `${place}: ${integer.format(n)}`)).join(', ') : '');
				setChildren(row.querySelector('.evidence'), ...this.evidence(item));
				setChildren(row.children[1], ...this.cell(item));
				if (!this.actions) return;
				const actions = changeable(item) ? this.actions(item) : [];
				const cell = row.children[2];
				const labels = actions.map(([kind]) => kind).join();
				if (cell.labels === labels) return;
				cell.labels = labels;
				cell.replaceChildren(...actions.map(([kind]) => element('button', { class: 'small', 'aria-label': `${changes[kind].button} key ${plainKey(item)}${this.ofAll ? ` of zone ${item.zone}` : ''}`,
					onclick: () => change(kind, item.zone, { key: item.key, place: this.eachInstance ? null : item.place }) }, changes[kind].button)));
			});
		const empty = $(`${this.id}-empty`);
		empty.hidden = this.items !== null && this.items.length > 0 && this.errors.length === 0;
		empty.classList.toggle('failure', this.errors.length > 0);
		if (!empty.hidden) setText(empty, this.whyEmpty());
		if ($(`${this.id}-more`)) $(`${this.id}-more`).hidden = !this.isTruncated;
	}

	whyEmpty() {
		if (this.items === null) return 'Loading…';
		if (this.errors.length > 0) return this.errors.join(' · ');
		return this.isTruncated ? 'None so far. There are more keys to look through.' : this.none();
	}
}

const settingsOfChosen = () => variants(chosen);

const banEnds = (b) => [element('span', {}, `in ${formatSpan(Math.max(0, Math.round((new Date(b.until) - Date.now()) / 1000)))}`), ' ', element('span', { class: 'quiet' }, `${({ operator: 'by an operator', response: 'by a response' })[b.origin] || 'by denials'}${b.shadow ? ' (shadow mode)' : ''}`)];

// Denied keys come before those that only would be denied.
const deniedKeys = {
	eachInstance: true, isNumber: true,
	order: (a, b) => Boolean(a.shadow) - Boolean(b.shadow) || b.denied - a.denied,
	cell: (k) => [element('span', { title: `since ${formatInstant(new Date(k.first))}` }, `${integer.format(k.denied)}${k.denied < k.at_most ? ' or more' : ''}`)],
	evidence: (k) => [element('code', {}, k.limit), ` · last ${since(k.last)} ago`],
	none: () => 'No key was denied recently.',
};

const lists = [
	new KeyList('top', 'top', 2, {
		...deniedKeys,
		actions: () => [...(settingsOfChosen().some(canBan) ? [['ban']] : []), ...(settingsOfChosen().some((z) => z.runtime_overrides) ? [['override']] : []), ['reset']],
	}),
	new KeyList('bans', 'bans', 5, {
		field: 'bans', cell: banEnds, actions: () => [['unban']],
		none: () => (settingsOfChosen().some(canBan) ? 'No key is banned.' : 'This zone has neither ban nor hold.'),
	}),
	new KeyList('overrides', 'overrides', 5, {
		field: 'overrides',
		cell: (o) => [element('span', {}, overrideText(o))],
		actions: (o) => (o.from === 'runtime' ? [['remove']] : []),
		none: () => (settingsOfChosen().some((z) => z.runtime_overrides) ? 'No key has an override.' : 'No key has an override. Overrides at run time need the option runtime_overrides.'),
	}),
];

// The lists of all zones ask once per zone with the option, so they ask less often.
const zonesWith = (has) => [...cards.keys()].filter((name) => variants(name).some(has));
const takesOverrides = (z) => z.runtime_overrides;
const allDenied = new KeyList('all-denied', 'top', 10, {
	...deniedKeys, ofAll: true, zones: () => [...cards.keys()], asks: (instance, zone) => instance.mayHaveDenied(zone), most: 10,
});
const listsOfAll = [
	allDenied,
	new KeyList('all-bans', 'bans', 10, {
		field: 'bans', ofAll: true, zones: () => zonesWith(canBan), cell: banEnds, actions: () => [['unban']], none: () => 'No key is banned.',
	}),
	new KeyList('all-overrides', 'overrides', 10, {
		field: 'overrides', ofAll: true, zones: () => zonesWith(takesOverrides), keeps: (o) => o.from === 'runtime',
		cell: (o) => [element('span', {}, overrideText(o))], actions: () => [['remove']], none: () => 'No key has an override that was set at run time.',
	}),
];

function refreshLists() {
	$('all-bans').hidden = zonesWith(canBan).length === 0;
	$('all-overrides').hidden = zonesWith(takesOverrides).length === 0;
	$('changed').hidden = $('all-bans').hidden && $('all-overrides').hidden;
	$('denied').hidden = !(allDenied.items || []).length;
	for (const list of listsOfAll) list.show();
	for (const list of [...(chosen === null ? [] : lists), ...listsOfAll]) if (!list.asking && elapsed() - list.asked >= list.every * second - 100) list.refresh();
}
