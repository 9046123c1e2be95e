// The token is in the fragment of the address. It stays in this tab, so that a reload works.
const token = (() => {
	const given = /^#token=([A-Z0-9]+)$/.exec(location.hash);
	if (given) {
		sessionStorage.setItem('token', given[1]);
		history.replaceState(null, '', '/');
	}
	return sessionStorage.getItem('token') || '';
})();

const $ = (id) => document.getElementById(id);

// element makes an element. Children are elements and texts. A text never becomes HTML.
function element(name, attributes, ...children) {
	const e = document.createElement(name);
	for (const [attribute, value] of Object.entries(attributes || {})) {
		if (attribute.startsWith('on')) e.addEventListener(attribute.slice(2), value);
		else if (value === true) e.setAttribute(attribute, '');
		else if (value !== false && value !== undefined && value !== null) e.setAttribute(attribute, value);
	}
	e.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
	return e;
}

// setText changes a text only if it differs, so that selections and screen readers are left alone.
function setText(e, text) {
	if (e.textContent !== text) e.textContent = text;
}

// setChildren does the same with children, compared by their text and classes.
function setChildren(e, ...children) {
	const fresh = element('div', {}, ...children);
	if (e.shown === undefined || !e.shown.isEqualNode(fresh)) {
		e.shown = fresh.cloneNode(true);
		e.replaceChildren(...fresh.childNodes);
	}
}

// withoutCause removes the cause of a failure, as a program writes it. The title of the instance's state has it.
const withoutCause = (text) => text.replace(/ \(.*\): /, ': ');

class CallError extends Error {
	constructor(status, message) {
		super(status === 503 ? withoutCause(message) : message);
		this.status = status;
	}
}

// call sends a request to the program that serves the page, and returns the answer's JSON.
async function call(method, path, body) {
	const headers = { 'Status-Page-Token': token };
	const options = { method, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' };
	if (body !== undefined) options.body = JSON.stringify(body);
	let response, text;
	try {
		response = await fetch(path, options);
		text = await response.text();
	} catch {
		throw new CallError(0, 'The command “caddy rate-limit ui” has ended. Start it again.');
	}
	let answer = null;
	try {
		answer = text === '' ? null : JSON.parse(text);
	} catch {
		if (response.ok) throw new CallError(response.status, 'The answer is not JSON.');
	}
	if (!response.ok) throw new CallError(response.status, (answer && answer.error) || `Status ${response.status}`);
	return answer;
}

// Numbers and times.

// elapsed is a clock in milliseconds that never goes back, also if somebody sets the machine's clock. It
// continues while the machine sleeps, when performance.now() can stand still.
const elapsed = (() => {
	let total = 0, wall = Date.now(), steady = performance.now();
	return () => {
		const byWall = Date.now() - wall, bySteady = performance.now() - steady;
		total += byWall > bySteady + 1000 ? byWall : bySteady;
		wall += byWall;
		steady += bySteady;
		return total;
	};
})();

const integer = new Intl.NumberFormat('en');
const oneDigit = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const dayAndClock = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short', hourCycle: 'h23' });

function formatRate(rate) {
	if (rate === null || rate === undefined) return '–';
	if (rate === 0) return '0';
	if (rate < 0.05) return '<0.1';
	return rate < 9.95 ? oneDigit.format(rate) : integer.format(Math.round(rate));
}

// formatSpan writes seconds with the two largest units.
function formatSpan(seconds) {
	if (seconds < 0) seconds = 0;
	if (seconds > 0 && seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
	if (seconds < 10) return `${oneDigit.format(seconds).replace(/\.0$/, '')} s`;
	let rest = Math.round(seconds);
	const parts = [];
	for (const [unit, length] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
		if (rest >= length && parts.length < 2) parts.push(`${Math.floor(rest / length)} ${unit}`);
		else if (parts.length > 0) break;
		rest %= length;
	}
	return parts.join(' ');
}

function formatInstant(date) {
	return (Date.now() - date > 20 * 3600e3 || date - Date.now() > 20 * 3600e3 ? dayAndClock : clock).format(date);
}

// since writes how long ago an instant of the API was.
function since(text) {
	return formatSpan(Math.round((Date.now() - new Date(text)) / 1000));
}

// inCaddyfile writes placeholders as a Caddyfile does.
const shortPlaceholders = [
	['{http.vars.client_ip}', '{client_ip}'], ['{http.request.remote.host}', '{remote_host}'], ['{http.request.remote.port}', '{remote_port}'],
	['{http.request.host}', '{host}'], ['{http.request.method}', '{method}'], ['{http.request.uri.path}', '{path}'],
	['{http.request.uri.query}', '{query}'], ['{http.request.uri}', '{uri}'], ['{http.request.scheme}', '{scheme}'],
	['{http.request.header.', '{header.'], ['{http.request.cookie.', '{cookie.'], ['{http.request.uri.query.', '{query.'],
	['{http.request.uri.path.', '{path.'], ['{http.request.host.labels.', '{labels.'], ['{http.vars.', '{vars.'], ['{http.regexp.', '{re.'],
];
const inCaddyfile = (text) => shortPlaceholders.reduce((t, [long, short]) => t.replaceAll(long, short), text);

// sameText compares values as JSON.
const sameText = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// message shows what a change did. It stays for a while; errors stay until they are closed.
function message(text, isError) {
	const e = element('div', { class: isError ? 'message failed' : 'message' },
		element('span', { class: 'icon', 'aria-hidden': 'true' }, isError ? '!' : '✓'), element('span', {}, text),
		element('button', { class: 'plain', 'aria-label': 'Dismiss', onclick: () => e.remove() }, '✕'));
	$('messages').append(e);
	while ($('messages').children.length > 4) $('messages').firstChild.remove();
	if (!isError) setTimeout(() => e.remove(), 8000);
}

// Rows of a table that changes while somebody uses it. Each row keeps its elements, so a button keeps
// the focus. Rows change places only while nobody points at the table or has the focus in it.
function updateRows(body, items, identify, create, update) {
	const known = body.known || (body.known = new Map());
	const seen = new Set();
	for (const item of items) {
		const id = identify(item);
		seen.add(id);
		let row = known.get(id);
		if (!row) {
			row = create(item);
			known.set(id, row);
			body.append(row);
		}
		update(row, item);
	}
	for (const [id, row] of known) {
		if (seen.has(id)) continue;
		const next = row.contains(document.activeElement) && (row.nextElementSibling || row.previousElementSibling);
		row.remove();
		known.delete(id);
		const button = next && next.querySelector('button');
		if (button) button.focus();
	}
	if (body.matches(':hover') || body.contains(document.activeElement)) return;
	items.forEach((item, i) => {
		const row = known.get(identify(item));
		if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
	});
}
